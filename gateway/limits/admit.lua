-- A batch of operations on counters, decided one after the other in one atomic step. The arithmetic is that of
-- window.py, where it is explained and proved; both are tested against each other.
--
-- KEYS     every counter of the batch (one hash slot)
-- ARGV[1]  msgpack [deadline, ttl, shapes, ops]; all times in microseconds of THIS server's clock
--            deadline  admissions and renewals of a batch that runs later than this do nothing: its sender has given up
--            ttl       life of a slot without renewal
--            shapes    [kind, limit, width, guard, burst, shadow, span, keep], see window.py
--            ops       [1, lease, k, s, cost, ...]            admit by all counters or by none
--                      [2, lease, k, s, entry, delta, ...]    settle
--                      [3, lease, k, s, ...]                  renew slots
--                      [4, replica, k, ttl]                   heartbeat (ttl 0: goodbye) -> live replicas
--                      [5, "", k, s, ...]                     look -> as admit, with "used" in place of the entry
--                      [6, "", k, s, ...]                     reset
--                    k and s are indices into KEYS and shapes, from 1
-- returns  msgpack [now, result of each op 1, 4, 5, 6 in order]

local SLICES = 120
local RETRY_SLOT = 1000000

local call, floor, max, min = redis.call, math.floor, math.max, math.min
local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]
local batch = cmsgpack.unpack(ARGV[1])
local ttl, shapes, ops = batch[2], batch[3], batch[4]
local late = now > batch[1]
local windows, slots, replies = {}, {}, {now}

-- A rate counter is a hash: u = sum of its slices, h = lowest slice that may exist, t = latest charged slice,
-- p = pacing time, and one field for each slice.

local function slide(w, key, shape)
  local over = floor((now - shape[4]) / shape[3]) - SLICES - 1
  if w.h > over then return end
  local gone = {}
  if over - w.h < 8 then
    for slice = w.h, over do gone[#gone + 1] = slice end
    local amounts = call('HMGET', key, unpack(gone))
    for i = 1, #gone do w.u = w.u - (tonumber(amounts[i]) or 0) end
  else
    local all = call('HGETALL', key)
    for i = 1, #all, 2 do
      local slice = tonumber(all[i])
      if slice and slice <= over then
        gone[#gone + 1] = slice
        w.u = w.u - tonumber(all[i + 1])
      end
    end
  end
  if #gone > 0 then call('HDEL', key, unpack(gone)) end
  w.h = over + 1
  w.dirty = true
end

local function window(k, shape)
  local w = windows[k]
  if w then return w end
  local v = call('HMGET', KEYS[k], 'u', 'h', 't', 'p')
  w = {u = tonumber(v[1]) or 0, h = tonumber(v[2]), t = tonumber(v[3]) or 0, p = tonumber(v[4]) or 0,
       keep = shape[8], deltas = {}}
  if w.h then slide(w, KEYS[k], shape) else w.h = floor(now / shape[3]) end
  windows[k] = w
  return w
end

local function held(k)
  local n = slots[k]
  if not n then
    call('ZREMRANGEBYSCORE', KEYS[k], '-inf', now)
    n = call('ZCARD', KEYS[k])
    slots[k] = n
  end
  return n
end

local function take(k, lease)
  call('ZADD', KEYS[k], now + ttl, lease)
  call('PEXPIRE', KEYS[k], floor(ttl / 1000) + 1000)
end

-- Live slices in order, read at most once a batch, and only when something must be refused.
local function slices(w, key)
  if not w.live then
    local live, all = {}, call('HGETALL', key)
    for i = 1, #all, 2 do
      local slice = tonumber(all[i])
      if slice then live[slice] = tonumber(all[i + 1]) end
    end
    for slice, delta in pairs(w.deltas) do live[slice] = (live[slice] or 0) + delta end
    w.live = live
  end
  if not w.order then
    w.order = {}
    for slice in pairs(w.live) do w.order[#w.order + 1] = slice end
    table.sort(w.order)
  end
  return w.order, w.live
end

local function delay(w, key, cost, shape)
  local wait = 0
  local over = w.u + cost - shape[2]
  if over > 0 then
    local order, live = slices(w, key)
    wait = shape[3]
    for i = 1, #order do
      over = over - live[order[i]]
      if over <= 0 then
        wait = (order[i] + 1) * shape[3] + shape[7] - now
        break
      end
    end
  end
  if shape[5] > 0 then
    local unit = SLICES * shape[3] / shape[2]
    local ahead = max(w.p - now, 0) + min(cost, shape[5]) * unit - shape[5] * unit
    if ahead > 0.5 then wait = max(wait, floor(ahead) + 1) end
  end
  return wait
end

local function add(w, slice, amount)
  w.deltas[slice] = (w.deltas[slice] or 0) + amount
  if w.live then
    if not w.live[slice] then w.order = nil end
    w.live[slice] = (w.live[slice] or 0) + amount
  end
  w.u = w.u + amount
  w.dirty = true
end

local function charge(w, cost, shape)
  local slice = max(floor(now / shape[3]), w.h)
  add(w, slice, cost)
  w.t = max(w.t, slice)
  if shape[5] > 0 then w.p = max(w.p, now) + cost * (SLICES * shape[3] / shape[2]) end
  return slice
end

local function state(w, shape)
  local left, reset = shape[2] - w.u, 0
  if shape[5] > 0 then
    local unit = SLICES * shape[3] / shape[2]
    left = min(left, floor(shape[5] - max(w.p - now, 0) / unit + 0.000001))
  end
  if w.u > 0 then reset = max((w.t + 1) * shape[3] + shape[7] - now, 0) end
  return max(left, 0), reset
end

local function admit(op)
  if late then return {-2, 0} end
  local violated, longest, waits = -1, 0, {}
  for i = 3, #op, 3 do
    local k, shape = op[i], shapes[op[i + 1]]
    local wait = 0
    if shape[1] == 0 then
      wait = delay(window(k, shape), KEYS[k], op[i + 2], shape)
    elseif held(k) >= shape[2] then
      wait = RETRY_SLOT
    end
    waits[i] = wait
    if wait > longest and shape[6] == 0 then violated, longest = (i - 3) / 3, wait end
  end
  local out = {violated, longest}
  for i = 3, #op, 3 do
    local k, shape = op[i], shapes[op[i + 1]]
    local taken, entry = violated < 0 and waits[i] == 0, -1
    local left, reset
    if shape[1] == 0 then
      if taken then entry = charge(windows[k], op[i + 2], shape) end
      left, reset = state(windows[k], shape)
    else
      if taken then
        take(k, op[2])
        slots[k] = slots[k] + 1
        entry = 0
      end
      left, reset = max(shape[2] - slots[k], 0), 0
    end
    out[i], out[i + 1], out[i + 2] = left, reset, entry
  end
  return out
end

local function settle(op)
  for i = 3, #op, 4 do
    local k, shape, slice, delta = op[i], shapes[op[i + 1]], op[i + 2], op[i + 3]
    if shape[1] ~= 0 then
      local n = held(k)
      slots[k] = n - call('ZREM', KEYS[k], op[2])
    else
      local w = window(k, shape)
      if delta > 0 then
        charge(w, delta, shape)
      elseif slice >= w.h then
        local amount = (tonumber(call('HGET', KEYS[k], slice)) or 0) + (w.deltas[slice] or 0)
        local back = min(amount, -delta)
        if back > 0 then
          add(w, slice, -back)
          if shape[5] > 0 then w.p = w.p - back * (SLICES * shape[3] / shape[2]) end
        end
      end
    end
  end
end

local function renew(op)
  if late then return end
  for i = 3, #op, 2 do
    take(op[i], op[2])
    slots[op[i]] = nil
  end
end

local function beat(op)
  local key = KEYS[op[3]]
  call('ZREMRANGEBYSCORE', key, '-inf', now)
  if op[4] == 0 then
    call('ZREM', key, op[2])
  elseif not late then
    call('ZADD', key, now + op[4], op[2])
    call('PEXPIRE', key, floor(op[4] / 1000) + 1000)
  end
  return {call('ZCARD', key)}
end

local function look(op)
  local out = {-1, 0}
  for i = 3, #op, 2 do
    local k, shape = op[i], shapes[op[i + 1]]
    local left, reset, used = 0, 0, 0
    if shape[1] == 0 then
      local w = window(k, shape)
      left, reset = state(w, shape)
      used = w.u
    else
      used = held(k)
      left = max(shape[2] - used, 0)
    end
    out[#out + 1], out[#out + 2], out[#out + 3] = left, reset, used
  end
  return out
end

-- A reset window stays as an empty hash that starts at the next slice, so that a refund of what was charged before
-- finds nothing to take from.
local function reset(op)
  for i = 3, #op, 2 do
    local k, shape = op[i], shapes[op[i + 1]]
    call('DEL', KEYS[k])
    if shape[1] == 0 then
      local next_slice = floor(now / shape[3]) + 1
      windows[k] = {u = 0, h = next_slice, t = next_slice, p = 0, keep = shape[8], deltas = {}, dirty = true}
    else
      slots[k] = nil
    end
  end
  return {1}
end

for _, op in ipairs(ops) do
  local code = op[1]
  if code == 1 then
    replies[#replies + 1] = admit(op)
  elseif code == 2 then
    settle(op)
  elseif code == 3 then
    renew(op)
  elseif code == 4 then
    replies[#replies + 1] = beat(op)
  elseif code == 5 then
    replies[#replies + 1] = look(op)
  else
    replies[#replies + 1] = reset(op)
  end
end

for k, w in pairs(windows) do
  if w.dirty then
    local key = KEYS[k]
    call('HSET', key, 'u', w.u, 'h', w.h, 't', w.t, 'p', string.format('%.17g', w.p))
    for slice, delta in pairs(w.deltas) do
      if delta ~= 0 then call('HINCRBY', key, slice, delta) end
    end
    call('PEXPIRE', key, w.keep)
  end
end

return cmsgpack.pack(replies)
