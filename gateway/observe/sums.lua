-- Adds sums of requests to those of days, each batch once.
--
-- KEYS[1]  the writer's last batch; KEYS[2], ...: the hashes of the days that occur
-- ARGV[1]  number of the batch, from 1; ARGV[2]: seconds that a day is kept; ARGV[3]: most fields of a day
-- ARGV[4]  msgpack [[day, field, instead, {requests, input, cached, output, cost}], ...]; day from 2 as in KEYS; instead:
--          the field to add to if there is no room for another one
-- ARGV[5]  1: a figure becomes the larger one instead of the sum

if (tonumber(redis.call('GET', KEYS[1])) or 0) >= tonumber(ARGV[1]) then return 0 end

for _, one in ipairs(cmsgpack.unpack(ARGV[4])) do
  local key, field, more = KEYS[one[1]], one[2], one[4]
  local old = redis.call('HGET', key, field)
  if not old and redis.call('HLEN', key) >= tonumber(ARGV[3]) then
    field = one[3]
    old = redis.call('HGET', key, field)
  end
  local sums, at = {}, 1
  for number in string.gmatch(old or '0 0 0 0 0', '%d+') do
    local before = tonumber(number)
    sums[at] = string.format('%.0f', ARGV[5] == '1' and math.max(before, more[at]) or before + more[at])
    at = at + 1
  end
  redis.call('HSET', key, field, table.concat(sums, ' '))
end
for day = 2, #KEYS do redis.call('EXPIRE', KEYS[day], ARGV[2]) end
redis.call('SET', KEYS[1], ARGV[1], 'EX', 86400)
return 1
