# The server makes a token: ffdl exec ID -- jupyter server list
export JUPYTER_RUNTIME_DIR="$JOB_STATE_DIR/jupyter"
exec jupyter server --allow-root --no-browser --ip 127.0.0.1 --port "${PORT:-8888}" --ServerApp.root_dir "$RESULT_DIR"
