// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.

// Dumps: the content for a program with a known answer, bad use of every kind, and what the environment asks for. The test
// runs itself as a child process for that: the first argument says what the child does.

#include "test-profile-files.h"

#if !defined(_WIN32)
#include <limits.h>
#endif

#if defined(_MSC_VER)
#include <intrin.h>
#define return_address()  ((uintptr_t)_ReturnAddress())
#else
#define return_address()  ((uintptr_t)__builtin_return_address(0))
#endif

/* -----------------------------------------------------------
  The text form
----------------------------------------------------------- */

#define MAX_DEPTH  (130)

typedef struct line_s {
  unsigned long long count;
  unsigned long long bytes;
  size_t    depth;
  uintptr_t frames[MAX_DEPTH];   // leaf first
} line_t;

#define MAX_LINES  (1000)
typedef struct text_s {
  unsigned long long count;
  unsigned long long bytes;
  unsigned long long alloc_count;
  unsigned long long rate;
  size_t    line_count;
  line_t    lines[MAX_LINES];
  size_t    modules;
  bool      has_main;            // a module holds `main`
  bool      ok;                  // all of it was understood
} text_t;

static text_t text;

int main(int argc, char** argv);

static void text_parse_frames(line_t* line, const char* p) {
  line->depth = 0;
  while (starts_with(p, " 0x") && line->depth < MAX_DEPTH) {
    char* end;
    line->frames[line->depth++] = (uintptr_t)strtoull(p + 1, &end, 16);
    p = end;
  }
  if (strcmp(p, "\n") != 0) { text.ok = false; }
  if (line->depth == 0) { text.ok = false; }      // a reader wants an address:
  if (line->depth == 1 && line->frames[0] == 1) { line->depth = 0; }   // 1 stands for none
}

static void text_read(const char* path) {
  static char line[16*1024];
  memset(&text, 0, sizeof(text));
  FILE* const f = fopen(path, "rb");
  if (f == NULL) return;
  text.ok = true;
  unsigned long long count2, bytes2;
  bool in_modules = false;
  for (size_t n = 0; fgets(line, sizeof(line), f) != NULL; n++) {
    if (n == 0) {
      text.ok = (sscanf(line, "heap profile: %llu: %llu [ %llu: %llu] @ heap_v2/%llu", &text.count, &text.bytes, &text.alloc_count, &bytes2, &text.rate) == 5);
    }
    else if (line[0] == '#' || line[0] == '\n') {
    }
    else if (strcmp(line, "MAPPED_LIBRARIES:\n") == 0) {
      in_modules = true;
    }
    else if (in_modules) {
      unsigned long long start, end;
      if (sscanf(line, "%llx-%llx r-xp", &start, &end) == 2) {
        text.modules++;
        if (start <= (uintptr_t)&main && (uintptr_t)&main < end) { text.has_main = true; }
      }
      else { text.ok = false; }
    }
    else {
      line_t* const l = &text.lines[text.line_count < MAX_LINES - 1 ? text.line_count++ : text.line_count];
      const char* const at = strstr(line, "] @");
      if (at == NULL || sscanf(line, " %llu: %llu [ %llu: %llu]", &l->count, &l->bytes, &count2, &bytes2) != 4) { text.ok = false; }
      else { text_parse_frames(l, at + 3); }
    }
  }
  fclose(f);
}

/* -----------------------------------------------------------
  The program: three leaves, each below the same four callers. Every function notes its return address, which is the frame of
  its caller as a stack must have it.
----------------------------------------------------------- */

typedef void* (leaf_t)(size_t size);

static uintptr_t leaf_return, third_return, second_return, first_return;

static test_noinline void* leaf_malloc(size_t size) {
  leaf_return = return_address();
  void* const p = mi_malloc(size);
  return test_use(p);
}

static test_noinline void* leaf_calloc(size_t size) {
  leaf_return = return_address();
  void* const p = mi_calloc(1, size);
  return test_use(p);
}

static test_noinline void* leaf_aligned(size_t size) {
  leaf_return = return_address();
  void* const p = mi_malloc_aligned(size, 4096);
  return test_use(p);
}

static test_noinline void* third_caller(leaf_t* leaf, size_t size) {
  third_return = return_address();
  void* const p = leaf(size);
  return test_use(p);
}

static test_noinline void* second_caller(leaf_t* leaf, size_t size) {
  second_return = return_address();
  void* const p = third_caller(leaf, size);
  return test_use(p);
}

static test_noinline void* first_caller(leaf_t* leaf, size_t size) {
  first_return = return_address();
  void* const p = second_caller(leaf, size);
  return test_use(p);
}

#define MAX_BLOCKS  (1000)
static void* blocks[MAX_BLOCKS];
static size_t block_count;

static test_noinline void allocate(leaf_t* leaf, size_t n, size_t size) {
  for (size_t i = 0; i < n; i++) { blocks[block_count++] = first_caller(leaf, size); }
}

static void free_blocks(size_t n) {
  for (; n > 0; n--) { mi_free(blocks[--block_count]); }
}

#if defined(_MSC_VER) && !defined(__clang__)
#define count_leaf_check(leaf,n)  // a function's address may be that of a jump to it
static bool is_in(uintptr_t pc, leaf_t* leaf) { (void)pc; (void)leaf; return true; }
#else
#define count_leaf_check(leaf,n)  check_eq(count_leaf_lines(leaf), n)

// Is `pc` in this function, as far as its start and those of its neighbours tell?
static bool is_in(uintptr_t pc, leaf_t* leaf) {
  const uintptr_t others[] = { (uintptr_t)&leaf_malloc, (uintptr_t)&leaf_calloc, (uintptr_t)&leaf_aligned, (uintptr_t)&third_caller,
                               (uintptr_t)&second_caller, (uintptr_t)&first_caller, (uintptr_t)&allocate };
  const uintptr_t start = (uintptr_t)leaf;
  if (pc <= start || pc > start + 256) return false;
  for (size_t i = 0; i < sizeof(others)/sizeof(others[0]); i++) {
    if (others[i] > start && others[i] < pc) return false;
  }
  return true;
}
#endif

static size_t count_lines(leaf_t* leaf, unsigned long long count, unsigned long long bytes) {
  size_t n = 0;
  for (size_t i = 0; i < text.line_count; i++) {
    const line_t* const l = &text.lines[i];
    if (l->count != count || l->bytes != bytes || l->depth < 6) continue;
    if (!is_in(l->frames[0], leaf)) continue;
    if (l->frames[1] != leaf_return || l->frames[2] != third_return || l->frames[3] != second_return || l->frames[4] != first_return) continue;
    n++;
  }
  return n;
}

test_fun size_t count_leaf_lines(leaf_t* leaf) {
  size_t n = 0;
  for (size_t i = 0; i < text.line_count; i++) {
    n += (text.lines[i].depth > 0 && is_in(text.lines[i].frames[0], leaf));
  }
  return n;
}

static void text_check_sums(size_t records, size_t bytes) {
  check(text.ok);
  unsigned long long count_sum = 0, bytes_sum = 0;
  for (size_t i = 0; i < text.line_count; i++) { count_sum += text.lines[i].count; bytes_sum += text.lines[i].bytes; }
  check_eq(text.count, count_sum);
  check_eq(text.bytes, bytes_sum);
  check_eq(text.count, records);
  check_eq(text.bytes, bytes);
}

static void dump_text_and_read(const char* path) {
  size_t records, bytes;
  mi_prof_debug_stats(&records, &bytes);
  check(mi_prof_dump_text(path));
  text_read(path);
  text_check_sums(records, bytes);
}

static void test_content(void) {
  test_begin("text: exact counts and bytes for each call path, with its frames");
  path_of(path, "content.heap");
  check(mi_prof_start(1));
  allocate(&leaf_aligned, 10, 100000);
  allocate(&leaf_calloc, 50, 1000);
  allocate(&leaf_calloc, 25, 40);
  allocate(&leaf_malloc, 100, 64);
  free_blocks(40);
  dump_text_and_read(path);
  check_eq(text.rate, 1);
  check_eq(count_lines(&leaf_aligned, 10, 1000000), 1);
  check_eq(count_lines(&leaf_calloc, 50, 50000), 1);
  check_eq(count_lines(&leaf_calloc, 25, 1000), 1);
  check_eq(count_lines(&leaf_malloc, 60, 3840), 1);
  count_leaf_check(&leaf_aligned, 1);
  count_leaf_check(&leaf_calloc, 2);
  count_leaf_check(&leaf_malloc, 1);
  check(text.modules > 0);
  check(text.has_main);
  if (!test_is_overridden()) { check_eq(text.line_count, 4); }
  // resized in place or not, the size is the new one
  blocks[block_count - 1] = mi_realloc(blocks[block_count - 1], 60);
  dump_text_and_read(path);
  check(count_lines(&leaf_malloc, 59, 59*64) == 1);
  free_blocks(block_count);
  dump_text_and_read(path);
  count_leaf_check(&leaf_malloc, 0);
  if (!test_is_overridden()) { check_eq(text.count, 0); check_eq(text.line_count, 0); }
  mi_prof_stop();

  check(mi_prof_start(4096));
  allocate(&leaf_malloc, 900, 512);
  dump_text_and_read(path);
  check_eq(text.rate, 4096);
  count_leaf_check(&leaf_malloc, 1);
  free_blocks(block_count);
  mi_prof_stop();
  remove(path);
}

static void test_replace(void) {
  test_begin("a dump replaces a regular file, with mode 0600, and leaves nothing else; relative paths work");
  path_of(path, "replaced.pb.gz");
  check(mi_prof_start(1));
  allocate(&leaf_malloc, 100, 64);
  file_write(path, "old content");
  #if !defined(_WIN32)
  check(chmod(path, 0644) == 0);
  const mode_t mask = umask(0);
  #endif
  check(mi_prof_dump(path));
  check(file_is_gzip(path));
  check(mi_prof_dump(path));
  check(file_is_gzip(path));
  check_eq(dir_count("", NULL, 0), 1);
  #if !defined(_WIN32)
  umask(mask);
  struct stat st;
  check(stat(path, &st) == 0 && (st.st_mode & 07777) == 0600);
  umask(0777);
  check(mi_prof_dump(path));
  umask(mask);
  check(stat(path, &st) == 0 && (st.st_mode & 07777) == 0600);
  char command[500];
  snprintf(command, sizeof(command), "gzip -t '%s' 2>&1", path);
  if (system("gzip --version > /dev/null 2>&1") == 0) { check(system(command) == 0); }
  // in the current folder
  char cwd[1000];
  check(getcwd(cwd, sizeof(cwd)) != NULL && chdir(dir) == 0);
  check(mi_prof_dump_text("relative.txt"));
  check(file_is_text_profile("relative.txt"));
  remove("relative.txt");
  check(chdir(cwd) == 0);
  #endif
  check(mi_prof_dump_text(path));     // the function chooses the form, not the name
  check(file_is_text_profile(path));
  remove(path);
  check_eq(dir_count("", NULL, 0), 0);
  free_blocks(block_count);
  mi_prof_stop();
}

/* -----------------------------------------------------------
  Bad use
----------------------------------------------------------- */

// A dump to `path` must fail: with one line of output, and as many files in the folder as before.
static void dump_fails(const char* path, const char* what) {
  for (int i = 0; i < 2; i++) {
    const size_t files = dir_count("", NULL, 0);
    const bool enabled = mi_prof_is_enabled();
    const size_t records = prof_records();
    output_reset();
    const bool ok = (i == 0 ? mi_prof_dump(path) : mi_prof_dump_text(path));
    test_check(!ok, what, __FILE__, __LINE__);
    if (!test_check(output_lines == 1, what, __FILE__, __LINE__)) { printf("output was: '%.300s'\n", output); }
    test_check(dir_count("", NULL, 0) == files, what, __FILE__, __LINE__);
    // the program goes on
    test_check(mi_prof_is_enabled() == enabled, what, __FILE__, __LINE__);
    test_check(prof_records() == records, what, __FILE__, __LINE__);
    void* const p = test_use(mi_malloc(100));
    test_check(prof_records() == records + (enabled ? 1 : 0), what, __FILE__, __LINE__);
    mi_free(p);
  }
}

static void test_bad_use(void) {
  test_begin("bad use: false, one line of output, nothing left behind, old content intact");
  path_of(file, "file");
  path_of(sub, "file/sub");
  path_of(missing, "missing/file");
  mi_register_output(&output_take, NULL);
  dump_fails(file, "profiling is off");
  check(strstr(output, "off") != NULL);
  file_write(file, "old content");
  dump_fails(file, "profiling is off and the file exists");
  check(file_is(file, "old content"));

  check(mi_prof_start(1));
  allocate(&leaf_malloc, 500, 64);
  dump_fails(NULL, "no path");
  dump_fails("", "an empty path");
  dump_fails(missing, "no such folder");
  dump_fails(sub, "a folder that is a file");
  dump_fails(dir, "a folder");
  static char too_long[5000];
  memset(too_long, 'x', sizeof(too_long) - 1);
  dump_fails(too_long, "a path that is too long");
  #if !defined(_WIN32)
  path_of(link, "link");
  path_of(fifo, "fifo");
  check(symlink("file", link) == 0);
  dump_fails(link, "a symbolic link");
  check(file_is(file, "old content"));
  check(remove(link) == 0 && symlink("nowhere", link) == 0);
  dump_fails(link, "a symbolic link to nowhere");
  check(remove(link) == 0);
  check(mkfifo(fifo, 0600) == 0);
  dump_fails(fifo, "a fifo");
  check(remove(fifo) == 0);
  dump_fails("/dev/null", "a device");
  dump_fails("/dev/full", "a device");
  struct rlimit old_limit, limit;
  check(getrlimit(RLIMIT_FSIZE, &old_limit) == 0);
  // Not where an emulator would hit the limit with files of its own.
  for (rlim_t max = 0; max <= 256 && getenv("MI_TEST_EMULATED") == NULL; max += 64) {     // from nothing to a part
    limit = old_limit;
    limit.rlim_cur = max;
    check(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    dump_fails(file, "a full disk");
    check(setrlimit(RLIMIT_FSIZE, &old_limit) == 0);
    check(file_is(file, "old content"));
  }
  if (geteuid() != 0) {
    check(chmod(dir, 0500) == 0);
    dump_fails(file, "a folder without permission");
    check(chmod(dir, 0700) == 0);
    check(file_is(file, "old content"));
  }
  #endif
  // and then it works
  output_reset();
  check(mi_prof_dump(file));
  check(file_is_gzip(file));
  check_eq(output_lines, 0);
  free_blocks(block_count);
  mi_prof_stop();
  mi_register_output(NULL, NULL);
  remove(file);
}

/* -----------------------------------------------------------
  Depth
----------------------------------------------------------- */

static test_noinline void* recurse(unsigned depth) {
  void* const p = (depth == 0 ? mi_malloc(64) : recurse(depth - 1));
  return test_use(p);
}

static size_t recurse_depth(const char* path, unsigned depth) {
  void* const p = recurse(depth);
  check(p != NULL);
  dump_text_and_read(path);
  mi_free(p);
  size_t deepest = 0;
  for (size_t i = 0; i < text.line_count; i++) {
    if (text.lines[i].bytes == 64*text.lines[i].count && text.lines[i].depth > deepest) { deepest = text.lines[i].depth; }
  }
  return deepest;
}

static void test_depth(void) {
  test_begin("prof_bt_max: the depth of stacks, and no stacks at 0");
  path_of(path, "depth.txt");
  static const long maxima[] = { 0, 1, 5, 32, 128 };
  for (size_t i = 0; i < sizeof(maxima)/sizeof(maxima[0]); i++) {
    mi_option_set(mi_option_prof_bt_max, maxima[i]);
    check(mi_prof_start(1));
    check_eq(recurse_depth(path, 200), (maxima[i] == 0 ? 0 : maxima[i] + 1));    // with the mark of a truncated stack
    if (maxima[i] == 0) { for (size_t k = 0; k < text.line_count; k++) { check_eq(text.lines[k].depth, 0); } }
    mi_prof_stop();
  }
  mi_option_set(mi_option_prof_bt_max, 32);
  remove(path);
}

/* -----------------------------------------------------------
  A thread with a small stack
----------------------------------------------------------- */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define IS_SANITIZED  1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(undefined_behavior_sanitizer)
#define IS_SANITIZED  1
#endif
#endif

static size_t small_stack_size(void) {
  #if defined(IS_SANITIZED) || defined(_WIN32)
  return 128*1024;          // larger frames, and what Windows itself takes
  #else
  const size_t min = (size_t)PTHREAD_STACK_MIN;
  return (min < 16*1024 ? 16*1024 : min);
  #endif
}

static void small_stack_main(void* arg) {
  (void)arg;
  path_of(text_path, "small.txt");
  path_of(gzip_path, "small.pb.gz");
  allocate(&leaf_malloc, 100, 64);
  check(mi_prof_dump(gzip_path));
  check(mi_prof_dump_text(text_path));
  free_blocks(100);
}

#if defined(_WIN32)
static DWORD WINAPI small_stack_entry(LPVOID arg) { small_stack_main(arg); return 0; }

static void small_stack_run(void) {
  HANDLE const thread = CreateThread(NULL, small_stack_size(), &small_stack_entry, NULL, STACK_SIZE_PARAM_IS_A_RESERVATION, NULL);
  check(thread != NULL);
  WaitForSingleObject(thread, INFINITE);
  CloseHandle(thread);
}
#else
static void* small_stack_entry(void* arg) { small_stack_main(arg); return NULL; }

static void small_stack_run(void) {
  pthread_t thread;
  pthread_attr_t attr;
  pthread_attr_init(&attr);
  check(pthread_attr_setstacksize(&attr, small_stack_size()) == 0);
  if (check(pthread_create(&thread, &attr, &small_stack_entry, NULL) == 0)) { pthread_join(thread, NULL); }
  pthread_attr_destroy(&attr);
}
#endif

static void test_small_stack(void) {
  test_begin("a thread with a stack of 16 KiB allocates and dumps");
  path_of(text_path, "small.txt");
  path_of(gzip_path, "small.pb.gz");
  check(mi_prof_start(1));
  small_stack_run();
  mi_prof_stop();
  text_read(text_path);
  check(text.ok);
  check_eq(count_lines(&leaf_malloc, 100, 6400), 1);
  check(file_is_gzip(gzip_path));
  remove(text_path);
  remove(gzip_path);
}

/* -----------------------------------------------------------
  Child processes
----------------------------------------------------------- */

// The child: start by the environment; leave blocks behind.
static int child_main(const char* what) {
  if (strcmp(what, "off") == 0) return (mi_prof_is_enabled() ? 1 : 0);
  if (!mi_prof_is_enabled()) return 2;
  printf("pid %d\n", (int)getpid());
  allocate(&leaf_malloc, 100, 64);
  if (strcmp(what, "peak") == 0) { free_blocks(90); }
  if (strcmp(what, "depth") == 0) { blocks[block_count++] = recurse(200); }
  fflush(stdout);
  if (strcmp(what, "exit") == 0) { exit(7); }
  if (strcmp(what, "names") == 0) { check_eq(block_count, 100); return test_done(what); }   // `cargo xtask test-all` reads the dump
  return 0;
}

static void clear_env(void) {
  set_env("MIMALLOC_PROF", NULL);
  set_env("MIMALLOC_PROF_SAMPLE_RATE", NULL);
  set_env("MIMALLOC_PROF_BT_MAX", NULL);
  set_env("MIMALLOC_PROF_UNWIND", NULL);
  set_env("MIMALLOC_PROF_DUMP_KIND", NULL);
  set_env("MIMALLOC_PROF_DUMP_AT_EXIT", NULL);
  set_env("MIMALLOC_SHOW_ERRORS", NULL);
}

static unsigned long long total_of_64(void) {
  unsigned long long n = 0;
  for (size_t i = 0; i < text.line_count; i++) {
    if (text.lines[i].bytes == 64*text.lines[i].count) { n += text.lines[i].count; }
  }
  return n;
}

static void test_at_exit(void) {
  test_begin("MIMALLOC_PROF_DUMP_AT_EXIT: %p is the process, .heap and .txt are text");
  static const char* const names[] = { "exit.%p.heap", "exit.%p.txt", "exit.%p.pb.gz", "exit.heap.%p", "exit.txt" };
  for (size_t i = 0; i < sizeof(names)/sizeof(names[0]); i++) {
    const bool is_text = (i == 0 || i == 1 || i == 4);
    path_of(path, names[i]);
    set_env("MIMALLOC_PROF", "1");
    set_env("MIMALLOC_PROF_SAMPLE_RATE", "1");
    set_env("MIMALLOC_PROF_DUMP_AT_EXIT", path);
    const bool by_exit = (i % 2 == 1);
    check_eq(run_child(by_exit ? "exit" : "return"), by_exit ? 7 : 0);
    int pid = 0;
    const char* const pid_line = strstr(child_output, "pid ");
    check(pid_line != NULL && sscanf(pid_line, "pid %d", &pid) == 1);
    char expected[100];
    const char* const percent = strstr(names[i], "%p");
    if (percent == NULL) { snprintf(expected, sizeof(expected), "%s", names[i]); }
    else { snprintf(expected, sizeof(expected), "%.*s%d%s", (int)(percent - names[i]), names[i], pid, percent + 2); }
    char found[300] = "";
    check_eq(dir_count("", found, sizeof(found)), 1);
    if (!check(strcmp(found, expected) == 0)) { printf("found '%s' instead of '%s'; output: %s\n", found, expected, child_output); }
    path_of(found_path, found);
    check(is_text ? file_is_text_profile(found_path) : file_is_gzip(found_path));
    if (is_text) {
      text_read(found_path);
      check(text.ok);
      check_eq(text.rate, 1);
      check(total_of_64() >= 100);
    }
    remove(found_path);
  }
  // what is in it: the child frees 90 of its 100 blocks, and nothing is live when the rest of the process is gone
  static const unsigned long long live[] = { 10, 10, 100 };
  for (size_t kind = 0; kind < 3; kind++) {
    path_of(path, "kind.heap");
    const char digit[2] = { (char)('0' + kind), 0 };
    set_env("MIMALLOC_PROF_DUMP_AT_EXIT", path);
    set_env("MIMALLOC_PROF_DUMP_KIND", digit);
    check_eq(run_child("peak"), 0);
    text_read(path);
    check(text.ok);
    check_between(total_of_64(), live[kind], live[kind] + (test_is_overridden() ? 8 : 0));
    check(kind == 1 ? text.alloc_count >= 100 && text.alloc_count > text.count : text.alloc_count == text.count);
    remove(path);
  }
  set_env("MIMALLOC_PROF_DUMP_KIND", NULL);
  // a file that cannot be written does no harm
  path_of(missing, "missing/exit.txt");
  set_env("MIMALLOC_PROF_DUMP_AT_EXIT", missing);
  check_eq(run_child("exit"), 7);
  check(strstr(child_output, "missing/exit.txt") != NULL);
  // nor does a session that was never started, or a very long path
  path_of(path, "exit.txt");
  set_env("MIMALLOC_PROF_DUMP_AT_EXIT", path);
  set_env("MIMALLOC_PROF", "0");
  check_eq(run_child("off"), 0);
  check(strstr(child_output, "exit.txt") != NULL);
  set_env("MIMALLOC_PROF", NULL);
  check_eq(run_child("off"), 0);
  static char too_long[6000];
  memset(too_long, 'x', sizeof(too_long) - 1);
  #if !defined(_WIN32)
  set_env("MIMALLOC_PROF", "1");
  set_env("MIMALLOC_PROF_DUMP_AT_EXIT", too_long);
  check_eq(run_child("exit"), 7);
  #endif
  clear_env();
  check_eq(dir_count("", NULL, 0), 0);
}

static void test_bad_options(void) {
  test_begin("nonsense in the environment: a warning and the default");
  path_of(path, "options.txt");
  static const struct {
    const char* name; const char* value; bool is_bad; unsigned long long rate; size_t depth;
  } cases[] = {
    { "MIMALLOC_PROF_SAMPLE_RATE", "-5",   true,  524288, 0 },
    { "MIMALLOC_PROF_SAMPLE_RATE", "abc",  true,  524288, 0 },
    { "MIMALLOC_PROF_SAMPLE_RATE", "5x",   true,  524288, 0 },
    { "MIMALLOC_PROF_SAMPLE_RATE", "4096", false, 4096,   0 },
    { "MIMALLOC_PROF_BT_MAX",      "9999", true,  1,      32 },
    { "MIMALLOC_PROF_BT_MAX",      "-1",   true,  1,      32 },
    { "MIMALLOC_PROF_BT_MAX",      "deep", true,  1,      32 },
    { "MIMALLOC_PROF_BT_MAX",      "10",   false, 1,      10 },
    { "MIMALLOC_PROF_UNWIND",      "wild", true,  1,      32 },
    { "MIMALLOC_PROF_UNWIND",      "auto", false, 1,      32 },
  };
  for (size_t i = 0; i < sizeof(cases)/sizeof(cases[0]); i++) {
    clear_env();
    set_env("MIMALLOC_PROF", "1");
    set_env("MIMALLOC_SHOW_ERRORS", "1");
    set_env("MIMALLOC_PROF_SAMPLE_RATE", "1");
    set_env("MIMALLOC_PROF_DUMP_AT_EXIT", path);
    set_env(cases[i].name, cases[i].value);
    check_eq(run_child("depth"), 0);
    const bool warned = (strstr(child_output, "invalid value") != NULL);
    if (!check(warned == cases[i].is_bad)) { printf("%s=%s: output: %s\n", cases[i].name, cases[i].value, child_output); }
    text_read(path);
    check(text.ok);
    check_eq(text.rate, cases[i].rate);
    if (cases[i].depth > 0) {
      size_t deepest = 0;
      for (size_t k = 0; k < text.line_count; k++) { if (text.lines[k].depth > deepest) { deepest = text.lines[k].depth; } }
      check_eq(deepest, cases[i].depth + 1);     // with the mark of a truncated stack
    }
    remove(path);
  }
  clear_env();
}

int main(int argc, char** argv) {
  if (argc > 1) return child_main(argv[1]);
  self = argv[0];
  clear_env();
  dir_create();
  test_content();
  test_replace();
  test_bad_use();
  test_depth();
  test_small_stack();
  test_at_exit();
  test_bad_options();
  dir_remove();
  return test_done("test-profile-dump");
}
