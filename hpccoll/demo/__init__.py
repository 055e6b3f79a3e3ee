"""``mpirun -n 3 python -m hpccoll.demo`` shows a broadcast and an allreduce: what each rank held before and after.

Rank 0 broadcasts 123.0 to ranks that hold 0.0; then the ranks add up their numbers. First with the calls of
torch.distributed, then with `hpccoll.Comm` on NumPy arrays. Every value is verified.
"""
