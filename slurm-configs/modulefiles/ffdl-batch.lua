-- Environment module for Lmod: <a directory of MODULEPATH>/ffdl-batch/<version>.lua. It is needed only if the commands are not
-- on every user's PATH.
help("ffdl_batch: training jobs from FfDL manifests on Slurm")
whatis("Name: ffdl_batch")
local bin = "@FFDL_BIN@"
-- At the end, because the directory also has a python3. man finds share/man beside the directories of PATH by itself.
append_path("PATH", bin)
