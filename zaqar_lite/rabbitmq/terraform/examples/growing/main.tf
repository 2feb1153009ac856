# Stage 1 of growth: from 15 s (4 bits) to a day (17 bits), while publishers still use 4 bits.
module "delay" {
  source = "../.."

  max_delay_seconds = 86400
  draining_bits     = 4
  growing_from_bits = 4
}
