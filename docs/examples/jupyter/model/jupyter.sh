# Jupyter with its own directory for tokens and kernels.
export JUPYTER_RUNTIME_DIR="$JOB_STATE_DIR/jupyter"
exec jupyter server "$@"
