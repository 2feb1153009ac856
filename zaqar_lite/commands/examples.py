"""Examples for the help of each command; a test parses all of them and runs those that it can.

Words in capitals stand for what an earlier command has printed: an id of a message, a claim, a
subscription, a key or a delivery.
"""

ROOT = """
zaqar-lite serve
zaqar-lite message post orders '{"order": 7}'
zaqar-lite watch
"""
"""The examples in the help that lists all commands."""

_LINES = """
serve --store redis://127.0.0.1:6379/0 --port 8888
bench --scenario post1,claim1 --seconds 5
queue create orders --max-failures 5 --dead-letter-queue failed
queue list --name ord --detailed
queue names ord
queue set orders team=shop --ttl 2d
queue unset orders team
queue apply queues.yaml --dry-run
queue show orders
queue stats orders failed
queue ranges orders 4
queue history orders --state failed
queue purge orders --dry-run
queue delete orders --dry-run
message post orders '{"order": 1}' '{"order": 2}' --ttl 1h
message post orders --file orders.jsonl --rejects refused.jsonl
message list orders --include-delayed
message tail orders --from-start --count 1
message show orders ID
message edit reminders ID --body '"call Ada"' --delay 10m
message move reminders ID --by 5m
message cancel reminders ID
message delete orders ID --claim CLAIM
message pop orders --wait 30s
message release orders ID --claim CLAIM --delay 5m --failed --reason http_503
message extend orders ID --claim CLAIM --ttl 10m
message dead orders ID --claim CLAIM --reason bad_format
claim create orders --limit 5 --ttl 10m
claim run orders --until-empty -- cat
claim show orders CLAIM
claim renew orders CLAIM --ttl 10m
claim release orders CLAIM
dlq list failed --source orders
dlq show failed LETTER
dlq count failed
dlq redrive failed --where customer.country=FR --dry-run
key create --grant 'send:orders*' --expires 90d
key list
key disable KEY
key enable KEY
key delete KEY
key rotate KEY --overlap 1h
quota show
quota set shop queues=100 bytes=none
quota reset shop
pool create fast redis://127.0.0.1:6379/1 --weight 50
pool list
pool show fast
pool update fast --weight 0
pool drain fast
pool delete fast
flavor create quick fast
flavor update quick fast
flavor list
flavor show quick
flavor delete quick
data-key list
data-key rotate
schedule create report reports '{"daily": true}' --cron '30 2 * * *' --time-zone Europe/Berlin
schedule list
schedule show report
schedule next report
schedule fire report
schedule pause report
schedule resume report
schedule delete report
subscription create orders https://receiver.example/hook --ttl 7d
subscription list orders
subscription show orders SUBSCRIPTION
subscription enable orders SUBSCRIPTION
subscription rotate orders SUBSCRIPTION
subscription ping orders SUBSCRIPTION
subscription log orders SUBSCRIPTION --failed
subscription retry orders SUBSCRIPTION DELIVERY
subscription replay orders SUBSCRIPTION --from 2030-12-24T18:00Z
subscription verify body.json --secret whsec_... --headers '{"webhook-id": "..."}'
subscription delete orders SUBSCRIPTION
topic create news
topic subscribe news queue:billing
topic post news '{"order": 17}'
topic list
topic show news
topic subscriptions news
topic unsubscribe news TOPIC_SUBSCRIPTION
topic delete news
listen --port 9999 --secret whsec_...
share orders --path messages --lasts 1h
unshare orders
health
watch orders --count 1
context add prod --url https://queues.example --project shop
context use prod
context list
context remove prod
completion bash
delay plan --max-delay 31d
delay apply --max-delay 31d --amqp-url amqp://127.0.0.1 --dry-run
delay verify --max-delay 31d --management-url http://127.0.0.1:15672
delay remove --max-delay 31d --amqp-url amqp://127.0.0.1 --dry-run
delay migrate --max-delay 1d --to-prefix delays2 --to-max-delay 31d
delay export mermaid --max-delay 31d
delay publish reminders '"call Ada"' --max-delay 31d --delay 30d
delay cancel ID --max-delay 31d
delay relay --max-delay 31d --zaqar-url http://127.0.0.1:8888
delay explain 36h --max-delay 31d
store check zaqar-lite-data
store backup zaqar-lite-data monday.sqlite3
store export zaqar-lite-data queues.jsonl
store import other-data queues.jsonl
store compact zaqar-lite-data
store salvage zaqar-lite-data new-data
"""
MOST = 4


def lines() -> list[str]:
    """Return all examples, in an order in which they can be run."""
    return [f"zaqar-lite {line}" for line in _LINES.split("\n") if line]


def of(command: str) -> list[str]:
    """Return the examples of a command such as `zaqar-lite queue create`, or of its first verbs."""
    if " " not in command:
        return ROOT.strip().split("\n")
    found = [line for line in lines() if line == command or line.startswith(f"{command} ")]
    return found[:MOST]
