variable "max_delay_seconds" {
  description = "The longest delay. A queue is made for every power of two that is not greater."
  type        = number
  default     = 15

  validation {
    condition     = var.max_delay_seconds >= 0 && var.max_delay_seconds < 549755813.888
    error_message = "A delay is 0 seconds to about 17 years."
  }
}

variable "unit_ms" {
  description = "The precision in milliseconds. Use another name_prefix for another unit."
  type        = number
  default     = 1000

  validation {
    condition     = var.unit_ms >= 1 && floor(var.unit_ms) == var.unit_ms
    error_message = "A unit is a whole number of milliseconds, at least 1."
  }
}

variable "name_prefix" {
  description = "What all names begin with."
  type        = string
  default     = "delay"

  validation {
    condition     = can(regex("^[A-Za-z0-9_-]+([.][A-Za-z0-9_-]+)*$", var.name_prefix)) && length(var.name_prefix) <= 60 && !startswith(var.name_prefix, "amq.")
    error_message = "A prefix is 1..60 letters, digits, '_', '-' with dots between words, not beginning with 'amq.'."
  }
}

variable "vhost" {
  description = "The virtual host. It must exist."
  type        = string
  default     = "/"
}

variable "queue_type" {
  description = "quorum (hands messages on at least once) or classic (at most once: a crash loses some)."
  type        = string
  default     = "quorum"

  validation {
    condition     = contains(["quorum", "classic"], var.queue_type)
    error_message = "A queue is quorum or classic."
  }
}

variable "anchor" {
  description = "right: <destination>.<digits>. left: <digits>.<destination>, quicker to route, cannot grow."
  type        = string
  default     = "right"

  validation {
    condition     = contains(["right", "left"], var.anchor)
    error_message = "Keys are anchored right or left."
  }
}

variable "head" {
  description = "What may stand before the digits at the ingest exchange: '#' anything, '*' exactly one word, '' nothing."
  type        = string
  default     = "#"

  validation {
    condition     = contains(["#", "*", ""], var.head)
    error_message = "The head is '#', '*' or ''."
  }
}

variable "unroutable" {
  description = "What the ingest exchange does with a key that it cannot route: park or return."
  type        = string
  default     = "park"

  validation {
    condition     = contains(["park", "return"], var.unroutable)
    error_message = "An unroutable message is parked or returned."
  }
}

variable "destinations" {
  description = "Destination -> queue in which its messages lie when they are due. null: zaqar -> <name_prefix>.zaqar."
  type        = map(string)
  default     = null
}

variable "draining_bits" {
  description = "The number of bits before the topology grew, while its messages are still on their way."
  type        = number
  default     = null
}

variable "growing_from_bits" {
  description = "The first stage of growth: the number of bits that publishers still use. Its ingest bindings stay."
  type        = number
  default     = null
}

variable "publishers" {
  description = "Users that may publish: they get the right to write to the ingest exchange, and no other."
  type        = set(string)
  default     = []
}

variable "relays" {
  description = "Users of relays: they may read the destinations' queues and park what can't be posted."
  type        = set(string)
  default     = []
}
