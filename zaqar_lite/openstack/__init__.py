"""Commands for `openstack messaging ...` that python-zaqarclient does not have.

They join the same group, so that one `openstack` command knows both:

message show, message delete, message edit
delayed list, delayed cancel
dlq list, dlq count, dlq redrive

`pip install 'zaqar-lite[openstack]'` brings python-openstackclient and python-zaqarclient.
"""
