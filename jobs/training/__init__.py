"""The parts of jobs/train_ddp.py, one concern a module."""
