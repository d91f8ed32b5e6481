// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.

// As `program.c`, in C++: what templates, members, inlined functions and the standard library hold. A line `inner` is
// for a function that is inlined, or a member: `go tool pprof` adds it to its caller, or finds no name for it. Nor does
// it for a function that comes before the templates in the program.

#include <mimalloc/profile.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#define PLAIN __attribute__((noipa))
#define INLINE __attribute__((always_inline)) inline

struct session_t { char data[240]; };
struct image_t { char data[4000]; };
struct page_t { char data[5000]; };

template <typename T> using list_t = std::vector<std::unique_ptr<T>>;

template <typename T> INLINE void add_one(list_t<T>& list) {
  list.emplace_back(new T);
}

template <typename T> PLAIN void hold_each(list_t<T>& list, size_t count) {
  list.reserve(1000);
  for (size_t i = 0; i < count; i++) { add_one(list); }
}

namespace store {
  template <typename T> class pool_t {
    list_t<T> items;
  public:
    PLAIN void fill(size_t count) {
      for (size_t i = 0; i < count; i++) { items.emplace_back(new T); }
    }
    void reserve(size_t count) { items.reserve(count); }
  };
}

static list_t<session_t> sessions;
static list_t<image_t> images;
static std::vector<char*> buffers;
static store::pool_t<page_t> pool;

template <typename T> PLAIN void leak_each(std::vector<T*>& list, size_t count) {
  for (size_t i = 0; i < count; i++) { list.push_back(new T[200]); }
}

PLAIN static void serve() {
  hold_each(sessions, 100);
  hold_each(images, 10);
  pool.fill(5);
}

static void dump(const char* name, int number) {
  const std::string path = std::string(name) + "." + std::to_string(number);
  if (!mi_prof_dump((path + ".pb.gz").c_str()) || !mi_prof_dump_text((path + ".heap").c_str())) exit(1);
}

int main(int argc, char** argv) {
  buffers.reserve(1000);
  pool.reserve(1000);
  if (argc != 2 || !mi_prof_start(0)) {
    fprintf(stderr, "usage: program NAME\n");
    return 1;
  }
  serve();
  dump(argv[1], 1);
  leak_each(buffers, 70);
  dump(argv[1], 2);
  const size_t array = 1000 * sizeof(void*);
  printf("held hold_each<session_t> %zu 101\n", array + 100 * sizeof(session_t));
  printf("held hold_each<image_t> %zu 11\n", array + 10 * sizeof(image_t));
  printf("held leak_each<char> 14000 70\n");
  printf("grew leak_each<char> 14000 70\n");
  printf("inner add_one<session_t> %zu 100\n", 100 * sizeof(session_t));
  printf("inner add_one<image_t> %zu 10\n", 10 * sizeof(image_t));
  printf("inner store::pool_t<page_t>::fill %zu 5\n", 5 * sizeof(page_t));
  return 0;
}
