"""Tables, text, plots and HTML that commands print."""
