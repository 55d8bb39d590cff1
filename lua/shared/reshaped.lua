-- Whether the window that new settings ask for is another than that of the old ones. It starts anew then, and only then.
local function reshaped(before, rules)
  return before:match(';(%d+ %d+ %d+)') ~= rules:match(';(%d+ %d+ %d+)')
end
