// COUNT times: frees a random one of SLOTS blocks and allocates another of 16 to 512 bytes in its place. With one slot
// that is pairs of mi_malloc and mi_free. Callgrind counts the instructions of two runs of different length.
#include <mimalloc.h>
#include <stdint.h>
#include <stdlib.h>

static void* blocks[1 << 17];

int main(int argc, char** argv) {
  if (argc != 3) return 1;
  const long count = atol(argv[1]);
  const uint64_t slots = (uint64_t)atol(argv[2]);
  if (slots == 0 || slots > sizeof(blocks) / sizeof(blocks[0])) return 1;
  uint64_t random = 88172645463325252u;
  for (long i = 0; i < count; i++) {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    void** const block = &blocks[(random >> 32) % slots];
    mi_free(*block);
    *block = mi_malloc(16 + random % 497);
  }
  return 0;
}
