terraform {
  required_version = ">= 1.3, < 2.0"

  required_providers {
    rabbitmq = {
      source  = "cyrilgdn/rabbitmq"
      version = ">= 1.8, < 2.0"
    }
  }
}
