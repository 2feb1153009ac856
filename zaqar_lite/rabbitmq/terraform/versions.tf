terraform {
  required_version = ">= 1.3"

  required_providers {
    rabbitmq = {
      source  = "cyrilgdn/rabbitmq"
      version = ">= 1.8"
    }
  }
}
