"""Daemons that are killed thousands of times under a stream of work, and what must be true afterwards.

One *world* is a state directory with its database, its job directories and a cluster. A *life* is one run of the real
ffdl-submitd in it, which ends by SIGKILL at a step or a moment.

    worker.py      the process of its own that plays worlds one after the other; what `tests.proof.crash` starts
    course.py      one world: life after life, each judged, then everything to its end
    warm.py        the parent of all lives: everything imported, no thread, no connection
    watching.py    the steps of a life, named from outside the product
    steps.py       names of steps, and the plan of a death
    companions.py  the other processes of a world: cluster, users, examiner
    cluster.py     a scheduler whose jobs are heads.py's generators; remote.py is the daemon's way to it
    users.py       clients over the socket, each a user.py with habits.py, and their diary.py of what was answered
    examiner.py    reads database, directories and diary; judge.py decides what is wrong
    aftermath.py   what a real Slurm has, and had, of a world in the end
    mutations.py   faults of the product, made from outside, that the judge has to find
"""
