"""What moves between an attempt's directory and its stores: model, data, results and logs."""
