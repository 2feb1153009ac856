output "bits" {
  description = "How many binary digits a delay has in a routing key."
  value       = local.bits

  precondition {
    condition     = pow(2, local.bits - 1) * var.unit_ms <= 315360000000
    error_message = "${local.bits} bits of ${var.unit_ms} ms need a queue with a time to live beyond RabbitMQ's ten years: 29 bits of 1000 ms and 39 of 1 ms are the most."
  }

  precondition {
    condition     = alltrue([for old in compact([var.draining_bits, var.growing_from_bits]) : var.anchor == "right" && tonumber(old) >= 1 && tonumber(old) < local.bits])
    error_message = "A topology grows from fewer bits than it has now, and only where keys are right-anchored."
  }
}

output "max_delay_seconds" {
  description = "The longest delay that publishers may ask for."
  value       = (pow(2, local.bits) - 1) * var.unit_ms / 1000
}

output "ingest_exchange" {
  description = "The exchange to publish to."
  value       = local.ingest
}

output "end_exchange" {
  description = "The exchange in which every delay ends."
  value       = local.end
}

output "unroutable_queue" {
  description = "The queue of what no binding wanted. Watch that it is empty."
  value       = local.parking
}

output "failed_queue" {
  description = "The queue of what the relay could never post."
  value       = local.failed
}

output "exchanges" {
  description = "The exchanges, by name."
  value       = local.exchanges
}

output "queues" {
  description = "The queues' arguments as JSON, by name."
  value       = local.queues
}

output "bindings" {
  description = "The bindings."
  value       = values(local.bindings)
}
