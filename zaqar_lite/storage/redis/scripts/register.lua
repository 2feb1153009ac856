-- Let the sweep visit a queue.
-- ARGV: 1 tag of the queue, 2 instant (ms)
-- key visits: zset, queue by the instant of its next visit; members removed by reschedule
-- include: visit
note_visit(ARGV[1], tonumber(ARGV[2]))
return {'ok'}
