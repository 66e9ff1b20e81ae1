"""Several engines behind one port: a process for each GPU, HAProxy before them, and a supervisor that watches both.

Every replica is the server as it stands (`s1_mini.sagemaker.app`), on a Unix socket. The supervisor starts and replaces
replicas and proxy, and answers itself only what is about all of them (`about_all`). It loads no model.
"""
