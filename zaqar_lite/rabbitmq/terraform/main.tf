# What there is, computed. The key of a message is its destination and then its delay as binary
# digits; an exchange with d digits left to decide has d + 1 bindings.
locals {
  units  = ceil(var.max_delay_seconds * 1000 / var.unit_ms)
  bits   = length(format("%b", local.units))
  levels = range(local.bits - 1, -1, -1)

  ingest  = "${var.name_prefix}.ingest"
  end     = "${var.name_prefix}.done"
  parking = "${var.name_prefix}.unroutable"
  failed  = "${var.name_prefix}.failed"
  targets = var.destinations == null ? { zaqar = "${var.name_prefix}.zaqar" } : var.destinations

  alternate = { "alternate-exchange" = local.parking }
  exchanges = merge(
    { (local.parking) = { type = "fanout", arguments = {} } },
    { (local.end) = { type = "topic", arguments = local.alternate } },
    { (local.ingest) = { type = "topic", arguments = { for k, v in local.alternate : k => v if var.unroutable == "park" } } },
    { for i in local.levels : "${var.name_prefix}.${pow(2, i)}.done" => { type = "topic", arguments = local.alternate } },
  )

  # Without reject-publish the broker falls back to at-most-once, and says nothing.
  kept = { "x-queue-type" = var.queue_type }
  handed_on = merge(local.kept, {
    for k, v in { "x-dead-letter-strategy" = "at-least-once", "x-overflow" = "reject-publish" } : k => v
    if var.queue_type == "quorum"
  })
  queues = merge(
    { (local.parking) = jsonencode(local.kept), (local.failed) = jsonencode(local.kept) },
    { for name in distinct(values(local.targets)) : name => jsonencode(merge(local.handed_on, { "x-dead-letter-exchange" = local.parking })) },
    {
      for i in local.levels : "${var.name_prefix}.${pow(2, i)}" => jsonencode(merge(local.handed_on, {
        "x-message-ttl"          = pow(2, i) * var.unit_ms
        "x-dead-letter-exchange" = "${var.name_prefix}.${pow(2, i)}.done"
      }))
    },
  )

  # Who decides how many digits, and what stands before and after them in its patterns.
  deciding = [
    for source in concat(
      [{ name = local.ingest, left = local.bits, head = var.head }],
      [for old in compact([var.growing_from_bits]) : { name = local.ingest, left = tonumber(old), head = var.head }],
      [for i in local.levels : { name = "${var.name_prefix}.${pow(2, i)}.done", left = i, head = "#" }],
      ) : {
      name   = source.name
      left   = source.left
      before = var.anchor == "left" ? [for _ in range(local.bits - source.left) : "*"] : compact([source.head])
      after  = var.anchor == "left" ? ["#"] : []
    }
  ]
  decisions = flatten([
    for source in local.deciding : concat(
      [
        for zeros in range(source.left) : {
          source           = source.name
          destination      = "${var.name_prefix}.${pow(2, source.left - 1 - zeros)}"
          destination_type = "queue"
          routing_key = join(".", concat(
            source.before,
            [for _ in range(zeros) : "0"],
            ["1"],
            # Left-anchored, the closing # stands for the digits that are not decided yet.
            [for _ in range(var.anchor == "left" ? 0 : source.left - 1 - zeros) : "*"],
            source.after,
          ))
        }
      ],
      [
        {
          source           = source.name
          destination      = local.end
          destination_type = "exchange"
          routing_key      = join(".", concat(source.before, [for _ in range(source.left) : "0"], source.after))
        }
      ],
    )
  ])
  endings = flatten([
    for bits in var.draining_bits == null ? [local.bits] : [local.bits, var.draining_bits] : [
      for destination, queue in local.targets : {
        source           = local.end
        destination      = queue
        destination_type = "queue"
        routing_key = join(".", var.anchor == "left" ? concat(
          [for _ in range(bits) : "*"], compact([destination])
          ) : concat(
          compact([destination]), [for _ in range(bits) : "*"]
        ))
      }
    ]
  ])
  bindings = {
    for b in concat(local.decisions, local.endings, [
      { source = local.parking, destination = local.parking, destination_type = "queue", routing_key = "" }
    ]) : "${b.source} -> ${b.destination} ${b.routing_key}" => b
  }
}

resource "rabbitmq_exchange" "this" {
  for_each = local.exchanges

  name  = each.key
  vhost = var.vhost

  settings {
    type        = each.value.type
    durable     = true
    auto_delete = false
    arguments   = each.value.arguments
  }
}

# Every change of a queue's arguments would replace it, with the messages in it: use another
# name_prefix instead. To give a topology up for good, take its queues out of the state
# (terraform state rm) and delete them when they are empty.
resource "rabbitmq_queue" "this" {
  for_each = local.queues

  name  = each.key
  vhost = var.vhost

  settings {
    durable        = true
    auto_delete    = false
    arguments_json = each.value
  }

  lifecycle {
    prevent_destroy = true
  }

  depends_on = [rabbitmq_exchange.this]
}

resource "rabbitmq_binding" "this" {
  for_each = local.bindings

  vhost            = var.vhost
  source           = each.value.source
  destination      = each.value.destination
  destination_type = each.value.destination_type
  routing_key      = each.value.routing_key

  depends_on = [rabbitmq_exchange.this, rabbitmq_queue.this]
}

resource "rabbitmq_permissions" "publisher" {
  for_each = var.publishers

  user  = each.key
  vhost = var.vhost

  permissions {
    configure = "^$"
    write     = "^${replace(local.ingest, ".", "\\.")}$"
    read      = "^$"
  }
}

resource "rabbitmq_permissions" "relay" {
  for_each = var.relays

  user  = each.key
  vhost = var.vhost

  permissions {
    configure = "^$"
    write     = "^amq\\.default$"
    read      = "^(${join("|", [for queue in values(local.targets) : replace(queue, ".", "\\.")])})$"
  }
}
