# Jupyter with its own directory for tokens, kernels and keys.
export JUPYTER_DATA_DIR="$JOB_STATE_DIR/jupyter"
exec jupyter server "$@"
