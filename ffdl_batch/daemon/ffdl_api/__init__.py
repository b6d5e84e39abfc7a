"""FfDL's REST API, version 1, for its existing clients.

Source: IBM/FfDL, restapi/api_v1/swagger/swagger.yml, and what its Python client, command line and dashboard send.
Unlike FfDL, this API authenticates: the password is an ffdl token, and headers that name a user must name the caller.
"""
