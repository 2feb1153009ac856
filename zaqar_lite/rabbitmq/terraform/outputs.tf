output "bits" {
  description = "How many binary digits a delay has in a routing key."
  value       = local.bits
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
