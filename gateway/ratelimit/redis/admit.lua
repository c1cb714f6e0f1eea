-- A batch of operations on counters, decided one after the other in one atomic step. window.py and spent.py explain the
-- arithmetic; both are tested against each other.
--
-- KEYS     every counter of the batch (one hash slot); a counter may occur more than once
-- ARGV[1]  msgpack [deadline, ttl, forms, plans, ops]; all times in microseconds of THIS server's clock
--            deadline  after it admissions and renewals do nothing, because the sender has given up
--            ttl       life of a slot without renewal
--            forms     lists of shapes; a shape is the fields of window.Shape, in their order
--            plans     [n, form]: the rules of a subject have the keys n + 1, n + 2, ... and the shapes of this form;
--                      behind them come the counters before those of its budgets that owe
--            ops       [1, holder, plan, [cost, ...]]                    admit by all rules or by none; the cost for a
--                                                                        budget is the fields of spent.Asked
--                      [2, holder, plan, [[rule from 0, entry, delta, held]]]  settle; slots of one holder, or of a list
--                      [3, holder, plan, [rule from 0, ...]]             renew slots
--                      [4, replica, k, ttl]                              heartbeat (0: goodbye) -> live replicas
--                      [5, "", plan]                                     look -> as admit, "used" for the entry
--                      [6, "", plan]                                     reset
--                      [7, replica, k, ttl]                              heartbeat, and room for a new counter
--                      [8, "", plan, [sum, ...]]                         raise what is spent of each budget
--                      [9, "", plan, [[cost, ...], [holder, ...]]]       lease: charge what requests will use soon, if
--                                                                        half of each limit is left then
-- returns  msgpack [now, result of each op 1, 4, 5, 6, 7, 8, 9 in order]; that of 1, 5 and 9 is a verdict:
--            [violated, wait, [[remaining, reset, entry] of each rule], latest], see model.Verdict;
--            behind the entry of a budget are what was charged and what is held

local SLICES, CYCLE = 120, 121
local RETRY_SLOT = 1000000
local FOREVER = 1125899906842624 -- 2^50
local LEASED = 250000 -- the life of a lease
local ABANDONED = 3600000 -- milliseconds: spent.ABANDONED
local RETURNS = 50000 -- the time after it in which its rest is back: batcher.COMPANY

local call, floor, ceil, max, min = redis.call, math.floor, math.ceil, math.max, math.min
local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]
local batch = cmsgpack.unpack(ARGV[1])
local ttl, forms, plans, ops = batch[2], batch[3], batch[4], batch[5]
local late = now > batch[1]
local windows, slots, sums, taken, replies = {}, {}, {}, {}, {now}
for _, form in ipairs(forms) do
  local behind = #form
  for i, s in ipairs(form) do
    form[i] = {counter = s[1], limit = s[2], width = s[3], guard = s[4], burst = s[5], shadow = s[6], span = s[7],
               keep = s[8], levels = s[9], reserves = s[11] == 1}
    if s[10] == 1 then
      behind = behind + 1
      form[i].owes = behind
    end
  end
end

-- A rate counter is a hash: u = sum of its slices and its debt, d = debt, h = lowest slice that may exist, t = latest
-- charged slice, p = pacing time, one field for each slice, and r<slice> = held of it by running requests. Until e, as
-- much as l may come back from leases.

local function put(w, slice, amount)
  w.deltas[slice] = (w.deltas[slice] or 0) + amount
  if w.live then
    if not w.live[slice] then w.order = nil end
    w.live[slice] = (w.live[slice] or 0) + amount
  end
  w.dirty = true
end

local function hold(w, slice, amount)
  w.holds[slice] = (w.holds[slice] or 0) + amount
  if w.held then w.held[slice] = (w.held[slice] or 0) + amount end
  w.dirty = true
end

-- Moves debt into a slice, as far as the sum of the slices leaves room.
local function pay(w, slice, shape)
  local paid = min(w.d, shape.limit - (w.u - w.d))
  if paid > 0 then
    put(w, slice, paid)
    w.d = w.d - paid
    w.t = max(w.t, slice)
  end
end

-- As the loop of Window.slide. All slices are written anew.
local function slide_owing(w, key, shape, over)
  local limit, amounts, order, first, holds = shape.limit, {}, {}, 1, {}
  local all = call('HGETALL', key)
  for i = 1, #all, 2 do
    local slice = tonumber(all[i])
    if slice then
      amounts[slice] = tonumber(all[i + 1])
      order[#order + 1] = slice
    elseif string.sub(all[i], 1, 1) == 'r' then
      local held = tonumber(string.sub(all[i], 2))
      if held > over then holds[held] = tonumber(all[i + 1]) end
    end
  end
  table.sort(order)
  while order[first] and order[first] <= over do
    local slice = order[first]
    if w.d >= limit and w.u - w.d == limit and slice + CYCLE <= over then
      local passed = min(floor((over - slice) / CYCLE), floor(w.d / limit))
      local moved = {}
      for i = first, #order do
        moved[order[i] + passed * CYCLE] = amounts[order[i]]
        order[i] = order[i] + passed * CYCLE
      end
      amounts = moved
      w.u, w.d, w.t = w.u - passed * limit, w.d - passed * limit, w.t + passed * CYCLE
    else
      local amount, next = amounts[slice], slice + CYCLE
      amounts[slice], first = nil, first + 1
      w.u = w.u - amount
      local paid = min(w.d, limit - (w.u - w.d))
      if amount > 0 and paid > 0 then
        if not amounts[next] then order[#order + 1] = next end
        amounts[next] = (amounts[next] or 0) + paid
        w.d = w.d - paid
        w.t = max(w.t, next)
      end
    end
  end
  call('DEL', key)
  w.deltas, w.holds, w.owed, w.h, w.dirty = amounts, holds, 0, over + 1, true
end

local function slide(w, key, shape)
  local over = floor((now - shape.guard) / shape.width) - SLICES - 1
  if w.h > over then return end
  if w.d > 0 then return slide_owing(w, key, shape, over) end
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
  if #gone > 0 then
    if shape.reserves then
      for i = 1, #gone do gone[#gone + 1] = 'r' .. gone[i] end
    end
    call('HDEL', key, unpack(gone))
  end
  w.h = over + 1
  w.dirty = true
end

local function window(key, shape)
  local w = windows[key]
  if w then return w end
  local v = call('HMGET', key, 'u', 'h', 't', 'p', 'd', 'e', 'l')
  local debt = tonumber(v[5]) or 0
  w = {u = tonumber(v[1]) or 0, h = tonumber(v[2]), t = tonumber(v[3]) or 0, p = tonumber(v[4]) or 0,
       d = debt, owed = debt, e = tonumber(v[6]) or 0, l = tonumber(v[7]) or 0, keep = shape.keep, limit = shape.limit,
       width = shape.width, deltas = {}, stored = {}, holds = {}}
  if w.h then slide(w, key, shape) else w.h = floor(now / shape.width) end
  windows[key] = w
  return w
end

local function held(key)
  local n = slots[key]
  if not n then
    call('ZREMRANGEBYSCORE', key, '-inf', now)
    n = call('ZCARD', key)
    slots[key] = n
  end
  return n
end

local function take(key, holder)
  call('ZADD', key, now + ttl, holder)
  taken[key] = true
end

-- A budget's counter is a hash with the fields of spent.Spent: u = used, r = held, b = birth, l = level,
-- a = admitted, which versions up to 0.9.0 neither read nor write.
local function owed(before, shape)
  if not shape.owes then return 0 end
  local key = KEYS[before + shape.owes]
  local spent = sums[key] and sums[key].u or tonumber(call('HGET', key, 'u')) or 0
  return max(spent - shape.limit, 0)
end

local function sum(before, i, shape)
  local key = KEYS[before + i]
  local s = sums[key]
  if s then return s end
  local v = call('HMGET', key, 'u', 'r', 'b', 'l', 'a')
  s = {u = tonumber(v[1]) or 0, r = tonumber(v[2]) or 0, b = tonumber(v[3]) or floor(now / 1000),
       l = tonumber(v[4]) or 0, a = tonumber(v[5]) or 0, passed = 0, keep = shape.keep}
  if not v[3] then
    s.u = owed(before, shape)
    s.owing, s.unborn = s.u > 0, true
  end
  sums[key] = s
  return s
end

local function spend_delay(s, expected, least, shape)
  if s.r > 0 and s.a == 0 then s.a, s.dirty = floor(now / 1000), true end
  if s.r > 0 and floor(now / 1000) - s.a > ABANDONED then s.r, s.dirty = 0, true end
  local spent, wait, level = s.u - s.r, 0, 0
  for i, at in ipairs(shape.levels) do
    if at <= spent then level = i end
  end
  if expected > 0 and s.u + least > shape.limit then
    wait = RETRY_SLOT
    if spent + least > shape.limit then wait, level = FOREVER, #shape.levels + 1 end
  end
  if level > s.l then s.l, s.passed, s.dirty = level, level, true end
  return wait
end

local function sum_state(s, shape)
  local passed = s.passed
  s.passed = 0
  return shape.limit - s.u, passed
end

-- Live slices in order, read at most once a batch, and only when something must be refused.
local function slices(w, key)
  if not w.live then
    local live, held, all = {}, {}, call('HGETALL', key)
    for i = 1, #all, 2 do
      local slice = tonumber(all[i])
      if slice then
        live[slice] = tonumber(all[i + 1])
      elseif string.sub(all[i], 1, 1) == 'r' then
        held[tonumber(string.sub(all[i], 2))] = tonumber(all[i + 1])
      end
    end
    for slice, delta in pairs(w.deltas) do live[slice] = (live[slice] or 0) + delta end
    for slice, delta in pairs(w.holds) do held[slice] = (held[slice] or 0) + delta end
    w.live, w.held = live, held
  end
  if not w.order then
    w.order = {}
    for slice in pairs(w.live) do w.order[#w.order + 1] = slice end
    table.sort(w.order)
  end
  return w.order, w.live
end

-- As Window._until; without: whether what is held does not count.
local function until_fits(w, key, cost, shape, without)
  local wait, later, used, held = 0, 0, w.u, {}
  if without then
    local order = slices(w, key)
    held = w.held
    for i = 1, #order do used = used - (held[order[i]] or 0) end
  end
  local over = used + cost - shape.limit
  if over > 0 then
    local counting = used - w.d
    if w.d > 0 and over > counting then
      local passed = ceil((over - counting) / shape.limit)
      later = passed * CYCLE
      over = over - counting - (passed - 1) * shape.limit + max(counting - shape.limit, 0)
    end
    local order, live = slices(w, key)
    wait = shape.width
    for i = 1, #order do
      over = over - live[order[i]] + (held[order[i]] or 0)
      if over <= 0 then
        wait = (order[i] + later + 1) * shape.width + shape.span - now
        break
      end
    end
  end
  if shape.burst > 0 then
    local unit = SLICES * shape.width / shape.limit
    local ahead = max(w.p - now, 0) + min(cost, shape.burst) * unit - shape.burst * unit
    if ahead > 0.5 then wait = max(wait, floor(ahead) + 1) end
  end
  return wait
end

local function delay(w, key, cost, shape)
  if cost == 0 then return 0 end
  if w.d > 0 then pay(w, max(floor(now / shape.width), w.h), shape) end
  return until_fits(w, key, cost, shape, false)
end

local function charge(w, cost, shape, ahead)
  local slice = max(floor((now + (ahead or 0)) / shape.width), w.h)
  if cost == 0 then return slice end
  put(w, slice, cost)
  w.u = w.u + cost
  w.t = max(w.t, slice)
  if shape.burst > 0 then w.p = max(w.p, now) + cost * (SLICES * shape.width / shape.limit) end
  return slice
end

local function state(w, shape)
  local left, reset = shape.limit - w.u, 0
  if shape.burst > 0 then
    local unit = SLICES * shape.width / shape.limit
    left = min(left, floor(shape.burst - max(w.p - now, 0) / unit + 0.000001))
  end
  if w.u > 0 then reset = max((w.t + ceil(w.d / shape.limit) * CYCLE + 1) * shape.width + shape.span - now, 0) end
  return max(left, 0), reset
end

local function admit(op)
  if late then return {-2, 0, {}} end
  local before, form, costs = plans[op[3]][1], forms[plans[op[3]][2]], op[4]
  local violated, longest, latest, waits = -1, 0, 0, {}
  for i = 1, #form do
    local key, shape = KEYS[before + i], form[i]
    local wait = 0
    if shape.counter == 0 then
      wait = delay(window(key, shape), key, costs[i], shape)
    elseif shape.counter == 2 then
      local s = sum(before, i, shape)
      s.dirty = s.dirty or s.owing
      wait = spend_delay(s, costs[i][1], costs[i][2], shape)
    elseif held(key) >= shape.limit then
      wait = RETRY_SLOT
    end
    waits[i] = wait
    local sooner = wait
    if wait > 0 and shape.reserves then
      sooner = max(until_fits(window(key, shape), key, costs[i], shape, true), min(wait, RETRY_SLOT))
    end
    local w = windows[key]
    if wait > 0 and w and now < w.e and w.u - w.l + costs[i] <= shape.limit then sooner = min(sooner, w.e - now) end
    if sooner > longest and shape.shadow == 0 then violated, longest, latest = i - 1, sooner, wait end
  end
  local counters = {}
  for i = 1, #form do
    local key, shape = KEYS[before + i], form[i]
    local fits, entry = violated < 0 and waits[i] == 0, -1
    local left, reset, charged, held_now
    if shape.counter == 0 then
      local w = windows[key]
      if fits then
        entry = charge(w, costs[i], shape)
        if shape.reserves and costs[i] > 0 then hold(w, entry, costs[i]) end
      end
      left, reset = state(w, shape)
    elseif shape.counter == 2 then
      local s = sums[key]
      charged = 0
      if fits then
        charged = max(min(costs[i][1], shape.limit - s.u), costs[i][2])
        s.u, s.r, s.dirty, entry = s.u + charged, s.r + charged, true, s.b
        if charged > 0 then s.a = floor(now / 1000) end
      end
      left, reset = sum_state(s, shape)
      held_now = s.r
    else
      if fits then
        take(key, op[2])
        slots[key] = slots[key] + 1
        entry = 0
      end
      left, reset = max(shape.limit - slots[key], 0), 0
    end
    counters[i] = {left, reset, entry, charged, held_now}
  end
  return {violated, longest, counters, latest}
end

local function settle(op)
  local before, form = plans[op[3]][1], forms[plans[op[3]][2]]
  for _, one in ipairs(op[4]) do
    local rule, slice, delta = one[1] + 1, one[2], one[3]
    local key, shape = KEYS[before + rule], form[rule]
    if shape.counter == 1 then
      local n = held(key)
      slots[key] = n - call('ZREM', key, unpack(type(op[2]) == 'table' and op[2] or {op[2]}))
    elseif shape.counter == 2 then
      local s = sum(before, rule, shape)
      if delta > 0 or slice == s.b then s.u = max(s.u + delta, 0) end
      if slice == s.b then s.r = max(s.r - one[4], 0) end
      s.dirty = true
    else
      local w = window(key, shape)
      if shape.reserves and one[4] > 0 and slice >= w.h then hold(w, slice, -one[4]) end
      if delta > 0 then
        local fits = min(delta, max(shape.limit - (w.u - w.d), 0))
        charge(w, fits, shape)
        if delta > fits then
          w.d, w.u, w.dirty = w.d + delta - fits, w.u + delta - fits, true
        end
        if shape.burst > 0 then
          local ahead = max(w.p, now) + (delta - fits) * (SLICES * shape.width / shape.limit)
          w.p = min(ahead, now + SLICES * shape.width)
        end
      elseif slice >= w.h then
        local stored = w.stored[slice]
        if not stored then
          stored = tonumber(call('HGET', key, slice)) or 0
          w.stored[slice] = stored
        end
        local back = min(stored + (w.deltas[slice] or 0), -delta)
        if back > 0 then
          local forgiven = min(back, w.d)
          w.d, w.u = w.d - forgiven, w.u - back
          if type(op[2]) == 'table' then w.l = max(w.l - back, 0) end
          put(w, slice, forgiven - back)
          if shape.burst > 0 then w.p = w.p - back * (SLICES * shape.width / shape.limit) end
        end
      end
    end
  end
end

local function lease(op)
  local before, form = plans[op[3]][1], forms[plans[op[3]][2]]
  local costs, names = op[4][1], op[4][2]
  for i, shape in ipairs(form) do
    local key, used = KEYS[before + i], nil
    if shape.counter == 0 then
      local w = window(key, shape)
      used = w.u + costs[i] + (w.d > 0 and shape.limit or 0)
    else
      used = held(key) + #names
    end
    if late or used * 2 > shape.limit then return {0, 0, {}} end
  end
  local counters = {}
  for i, shape in ipairs(form) do
    local key, entry = KEYS[before + i], 0
    if shape.counter == 0 then
      local w = windows[key]
      entry = charge(w, costs[i], shape, LEASED)
      if shape.reserves then hold(w, entry, costs[i]) end
      w.l, w.e = (now < w.e and w.l or 0) + costs[i], now + LEASED + RETURNS
      counters[i] = {state(w, shape)}
    else
      for _, name in ipairs(names) do take(key, name) end
      slots[key] = slots[key] + #names
      counters[i] = {shape.limit - slots[key], 0}
    end
    counters[i][3] = entry
  end
  return {-1, 0, counters}
end

local function renew(op)
  if late then return end
  for _, rule in ipairs(op[4]) do
    local key = KEYS[plans[op[3]][1] + rule + 1]
    take(key, op[2])
    slots[key] = nil
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
  return call('ZCARD', key)
end

-- A full server with `noeviction` refuses commands that may need memory, unless the script has written before. A
-- heartbeat begins by removing, so it would pass where an admission fails. Therefore it writes first, as an admission does.
local function probe(op)
  local key = KEYS[op[3] + 1]
  call('HSET', key, 'u', now)
  call('PEXPIRE', key, 1000)
  return beat(op)
end

local function look(op)
  local before, form, counters = plans[op[3]][1], forms[plans[op[3]][2]], {}
  for i, shape in ipairs(form) do
    local key = KEYS[before + i]
    local left, reset, used = 0, 0, 0
    if shape.counter == 0 then
      local w = window(key, shape)
      left, reset = state(w, shape)
      used = w.u
    elseif shape.counter == 2 then
      local s = sum(before, i, shape)
      used = s.u
      left = shape.limit - used
      -- A look begins no period: the next one owes nothing of what this one only would.
      if s.unborn and not s.dirty then sums[key] = nil end
    else
      used = held(key)
      left = max(shape.limit - used, 0)
    end
    counters[i] = {left, reset, used}
  end
  return {-1, 0, counters, 0}
end

-- A reset window stays as an empty hash that starts at the next slice, behind those of leases, so that a refund of what
-- was charged before finds nothing to take from.
local function reset(op)
  local before, form = plans[op[3]][1], forms[plans[op[3]][2]]
  for i, shape in ipairs(form) do
    local key = KEYS[before + i]
    call('DEL', key)
    if shape.counter == 0 then
      local first = floor((now + (shape.width > LEASED and LEASED or 0)) / shape.width) + 1
      windows[key] = {u = 0, h = first, t = first, p = 0, d = 0, owed = 0, e = 0, l = 0, keep = shape.keep,
                      limit = shape.limit, width = shape.width, deltas = {}, stored = {}, holds = {}, dirty = true}
    elseif shape.counter == 2 then
      sums[key] = {u = 0, r = 0, b = floor(now / 1000), l = 0, a = 0, passed = 0, keep = shape.keep, dirty = true}
    else
      slots[key] = nil
    end
  end
  return 1
end

local function raise(op)
  local before, form, nth = plans[op[3]][1], forms[plans[op[3]][2]], 0
  for i, shape in ipairs(form) do
    if shape.counter == 2 then
      nth = nth + 1
      if op[4][nth] > 0 then
        local s = sum(before, i, shape)
        s.u, s.dirty = max(s.u, op[4][nth]), true
      end
    end
  end
  return 1
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
  elseif code == 7 then
    replies[#replies + 1] = probe(op)
  elseif code == 5 then
    replies[#replies + 1] = look(op)
  elseif code == 8 then
    replies[#replies + 1] = raise(op)
  elseif code == 9 then
    replies[#replies + 1] = lease(op)
  else
    replies[#replies + 1] = reset(op)
  end
end

for key, w in pairs(windows) do
  if w.dirty then
    call('HSET', key, 'u', w.u, 'h', w.h, 't', w.t, 'p', string.format('%.17g', w.p))
    if now < w.e then call('HSET', key, 'e', w.e, 'l', w.l) end
    if w.d ~= w.owed then call('HSET', key, 'd', w.d) end
    for slice, delta in pairs(w.deltas) do
      if delta ~= 0 then call('HINCRBY', key, slice, delta) end
    end
    for slice, delta in pairs(w.holds) do
      if delta ~= 0 then call('HINCRBY', key, 'r' .. slice, delta) end
    end
    if w.d > 0 then w.keep = w.keep + ceil(w.d / w.limit) * ceil(CYCLE * w.width / 1000) end
    call('PEXPIRE', key, w.keep)
  end
end

for key, s in pairs(sums) do
  if s.dirty then
    call('HSET', key, 'u', s.u, 'r', s.r, 'b', s.b, 'l', s.l, 'a', s.a)
    call('PEXPIRE', key, s.keep)
  end
end

for key in pairs(taken) do call('PEXPIRE', key, floor(ttl / 1000) + 1000) end

return cmsgpack.pack(replies)
