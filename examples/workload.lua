-- A program that holds some memory and then exits with all of it held: `os.exit` does not close the state.

local users = {}
for i = 1, 200000 do
  users[i] = { id = i, name = string.format("user %d", i * 7919 % 200000), tags = { i % 7, i % 11 } }
end

local images = {}
for i = 1, 5000 do
  images[i] = string.rep(string.char(i % 256), 1000 + i)
end

collectgarbage()
print("collectgarbage", string.format("%d", collectgarbage("count") * 1024))
os.exit(0, false)
