"""The plugin's options in tempest.conf: the group `[zaqar_lite]`."""

from oslo_config import cfg

service_option = cfg.BoolOpt(
    "zaqar_lite", default=True, help="Whether Zaqar Lite is expected to be available"
)

group = cfg.OptGroup(name="zaqar_lite", title="Zaqar Lite messaging")

options = [
    cfg.StrOpt("catalog_type", default="messaging", help="Catalog type of the service."),
    cfg.StrOpt("region", default="", help="Region; the identity's own when empty."),
    cfg.IntOpt("max_messages_per_page", default=20, help="Most messages on a page."),
    cfg.IntOpt("max_messages_per_claim", default=20, help="Most messages of a claim."),
    cfg.IntOpt("max_message_ttl", default=1_209_600, help="Longest ttl of a message, seconds."),
    cfg.IntOpt("max_message_delay", default=900, help="Longest delay of a message, seconds."),
    cfg.IntOpt("max_claim_ttl", default=43_200, help="Longest ttl of a claim, seconds."),
    cfg.IntOpt("max_messages_post_size", default=262_144, help="Bytes of a post."),
    cfg.IntOpt("short_delay", default=2, help="Seconds that the tests let a message wait."),
    cfg.BoolOpt(
        "additions", default=True, help="Whether edits, idempotency keys and details are there."
    ),
]
