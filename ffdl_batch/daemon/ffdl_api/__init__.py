"""FfDL's REST API, version 1, for its existing clients.

Source: IBM/FfDL, restapi/api_v1/swagger/swagger.yml, and what its Python client, command line and dashboard send. What
FfDL left open is closed here: a password is a token of ffdl, and headers that name a user must name the caller.
"""
