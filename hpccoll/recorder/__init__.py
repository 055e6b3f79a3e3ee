"""The flight recorder and the watchdog: what this process has communicated, written down when something goes wrong.

Nothing here calls MPI or imports torch: it has to work while every thread is stuck in them. docs/hangs.md is the guide.

``ring``      the last operations of every communicator
``seam``      the decorators that every call of a communicator's method goes through
``sites``     where in the user's program a call stands
``limits``    how long an operation may take
``settings``  the environment variables
"""
