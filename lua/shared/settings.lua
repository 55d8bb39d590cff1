-- Which settings rule a target.
--
-- Callers send theirs with each call, as one text of integers with their revision in front. The text itself is
-- the fingerprint: equal texts, equal settings, and nothing more is looked at. Of two different ones the
-- higher revision rules, so that agents which have not heard of an edit yet don't undo it; they get the stored
-- settings. The first of them leaves a mark, `!` and the target's last use, which the next caller with the settings
-- that rule takes away. When nobody has used those for STALE (the policy with the higher revision was removed,
-- say), any caller's replace them.
local STALE = 60000

-- The settings that rule, what is to be written to `c` (nil: nothing), and the settings that were replaced, for a
-- caller whose settings are not what is stored. `last`: when the target was last used. No result: the caller's are none.
local function ruling(stored, mine, last, now)
  -- Whether the caller's hold nothing but settings: the pattern keeps out signs, fractions, exponents, nan and
  -- inf. The bounds are those of the work per call.
  local _, burst = mine:match(QUOTA .. BREAKER:sub(2))
  if not burst then
    return
  end
  for number in mine:gmatch('%d+') do
    if not (number + 0 < LIMIT) then
      return
    end
  end
  local kind, span, buckets = mine:match(BREAKER)
  local permits = select(13, mine:match(BREAKER)) + 0
  kind, span, buckets = kind + 0, span + 0, buckets + 0
  if not (burst * UNIT < LIMIT) or permits < 1 or permits > 16
    or not (kind == 0 and buckets >= 1 and buckets <= 16 and span >= buckets or kind == 1 and span >= 1 and span <= 1000)
  then
    return
  end
  if not stored then
    -- `%d` takes a C long.
    assert(('%d'):format(LIMIT - 1) == '9007199254740991', 'SLUICE the server is not of 64 bits')
    return mine, mine
  end
  local known, theirs, mark = stored:match('^(%d+ )([^!]+)!?(%d*)$')
  local revision, wanted = mine:match('^(%d+ )(.+)$')
  if wanted == theirs then
    -- The same under another revision, or marked by somebody else.
    if revision + 0 < known + 0 then
      mine = known .. theirs
    end
    return mine, mine ~= stored and mine or nil
  end
  if revision + 0 > known + 0 or now - (mark == '' and last or mark) >= STALE then
    return mine, mine, known .. theirs
  end
  local rules = known .. theirs
  return rules, mark == '' and ('%s!%d'):format(rules, last) or nil
end
