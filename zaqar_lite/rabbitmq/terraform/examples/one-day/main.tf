# Delays of up to a day on one broker, and the rights of who uses them.
terraform {
  required_providers {
    rabbitmq = {
      source  = "cyrilgdn/rabbitmq"
      version = ">= 1.8, < 2.0"
    }
  }
}

variable "management_url" {
  type    = string
  default = "http://127.0.0.1:15672"
}

variable "password" {
  description = "The administrator's; give it as TF_VAR_password."
  type        = string
  sensitive   = true
}

provider "rabbitmq" {
  endpoint = var.management_url
  username = "admin"
  password = var.password
}

module "delay" {
  source = "../.."

  max_delay_seconds = 86400
  publishers        = ["orders"]
  relays            = ["relay"]
}

output "publish_to" {
  value = module.delay.ingest_exchange
}

output "bits" {
  value = module.delay.bits
}
