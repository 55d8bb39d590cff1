-- Which settings rule a key.
--
-- Callers send theirs with each call, as one text of integers. The text itself is the fingerprint: equal
-- texts, equal settings. Of two different ones the higher revision rules, so that agents which have not
-- heard of an edit yet don't undo it; they get the stored settings. When nobody has used the stored
-- settings for STALE (the policy with the higher revision was removed, say), any caller's replace them.
local STALE = 60000
-- The last use is written at most this often.
local TOUCH = 10000
-- Idle keys live this long at least.
local TTL = 3600000

local BREAKER = '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$'
local QUOTA = '^(%d*) (%d+) (%d*) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$'

-- Whether a text holds nothing but settings: the patterns keep out signs, fractions, exponents, nan and inf,
-- and a sum below the limit means that every part is. The bounds are those of the work per call.
local function valid(text, pattern)
  local kind, span, buckets = match(text, pattern)
  if not kind then
    return false
  end
  local sum = 0
  for number in gmatch(text, '%d+') do
    sum = sum + number
  end
  if pattern == QUOTA then
    -- Here the second number is the burst.
    return sum < LIMIT and span * UNIT < LIMIT
  end
  local permits = select(13, match(text, pattern)) + 0
  kind, span, buckets = kind + 0, span + 0, buckets + 0
  return sum < LIMIT
    and permits >= 1
    and permits <= 16
    and (kind == 0 and buckets >= 1 and buckets <= 16 and span >= buckets or kind == 1 and span >= 1 and span <= 1000)
end

-- The settings that rule, what is to be written to `m` (nil: nothing), and the settings that were replaced.
-- Stored settings have been checked, and so has their equal; no result: the caller's are none.
local function ruling(stored, uses, revision, mine, now, pattern)
  local known, used, touched
  if stored then
    known, used, touched = match(uses, '^(%d+) (%d+) (%d+)$')
    known, used = known + 0, used + 0
    if stored == mine then
      if revision <= known and now - used < TOUCH then
        return mine
      end
      return mine, format('%.0f %.0f %.0f', max(revision, known), now, now)
    end
  end
  if not valid(mine, pattern) then
    return
  end
  if not stored or revision > known or now - used >= STALE then
    return mine, format('%.0f %.0f %.0f', revision, now, now), stored
  end
  if now - touched < TOUCH then
    return stored
  end
  return stored, format('%.0f %.0f %.0f', known, used, now)
end

-- How long an idle breaker is kept: twice what it remembers, and TTL at least.
local function lifetime(rules)
  local kind, span, cool, ramp = match(rules, '^(%d+) (%d+) %d+ %d+ %d+ %d+ %d+ %d+ %d+ %d+ %d+ (%d+) %d+ %d+ (%d+)')
  return TTL + 2 * ((kind == '0' and span or 0) + cool + ramp)
end
