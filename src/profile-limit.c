// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.
#if !defined(MI_IN_PROFILE_C)
#error "this file should be included from 'profile.c'"
// add includes help an IDE
#include "profile-internal.h"
#endif

/* -----------------------------------------------------------
  How near the process is to its memory limit: its resident
  memory to the physical memory, to RLIMIT_RSS and to the limits
  of its control groups (Linux); and its address space to
  RLIMIT_AS (Windows: what it has committed to the limits of its
  job). All is read anew each time, as limits may change: some ten
  system calls on Linux.
----------------------------------------------------------- */

#if defined(__APPLE__)
  #include <sys/sysctl.h>
#endif

typedef struct mi_prof_limits_s {
  uint64_t  resident;           // UINT64_MAX if there is none
  uint64_t  address_space;
} mi_prof_limits_t;

static inline void mi_prof_limit_lower(uint64_t* limit, uint64_t to) {
  if (to < *limit) { *limit = to; }
}

#if defined(__linux__)

// Read the start of a text file. Returns false if there is none.
static bool mi_prof_text_read(const char* path, char* text, size_t size) {
  const int fd = mi_prof_sys_open(path, O_RDONLY | O_CLOEXEC, 0);
  if (fd < 0) return false;
  const ssize_t n = mi_prof_sys_read(fd, text, size - 1);
  mi_prof_sys_close(fd);
  text[n > 0 ? n : 0] = 0;
  return (n > 0);
}

// Apply the limit of the group `group` below `root`, and of those that it is part of. In a container the path may be one of the
// world outside; then the container's own limit is that of the root.
static void mi_prof_cgroup_apply(const char* root, const char* group, size_t len, const char* file, uint64_t* limit) {
  const size_t root_len = _mi_strlen(root);
  while (true) {
    while (len > 0 && group[len - 1] == '/') { len--; }
    char path[1024];
    if (root_len + len + _mi_strlen(file) < sizeof(path)) {
      _mi_memcpy(path, root, root_len);
      _mi_memcpy(path + root_len, group, len);
      _mi_strlcpy(path + root_len + len, file, sizeof(path) - root_len - len);
      char text[32];
      const char* p = text;
      if (mi_prof_text_read(path, text, sizeof(text)) && text[0] != 'm') { mi_prof_limit_lower(limit, mi_prof_parse_number(&p)); }   // not `max`
    }
    if (len == 0) return;
    while (len > 0 && group[len - 1] != '/') { len--; }
  }
}

// Is `memory` in a list such as `cpu,memory`?
static bool mi_prof_cgroup_is_memory(const char* list, const char* end) {
  for (const char* p = list; end - p >= 6; p++) {
    if ((p == list || p[-1] == ',') && _mi_strnicmp(p, "memory", 6) == 0 && (p + 6 == end || p[6] == ',')) return true;
  }
  return false;
}

// The lowest limit, or UINT64_MAX. `groups` is as `/proc/self/cgroup`: lines such as `0::/path` (version 2) and
// `9:cpu,memory:/path` (version 1).
mi_decl_hidden uint64_t _mi_prof_cgroup_limit(const char* groups, const char* root_v2, const char* root_v1);
uint64_t _mi_prof_cgroup_limit(const char* groups, const char* root_v2, const char* root_v1) {
  uint64_t limit = UINT64_MAX;
  for (const char* line = groups; *line != 0; ) {
    const char* end = line;
    const char* colons[2] = { NULL, NULL };
    for (; *end != 0 && *end != '\n'; end++) {
      if (*end == ':' && colons[1] == NULL) { colons[colons[0] == NULL ? 0 : 1] = end; }
    }
    if (colons[1] != NULL) {
      const char* const path = colons[1] + 1;
      const size_t len = (size_t)(end - path);
      if (colons[0] + 1 == colons[1]) { mi_prof_cgroup_apply(root_v2, path, len, "/memory.max", &limit); }
      else if (mi_prof_cgroup_is_memory(colons[0] + 1, colons[1])) { mi_prof_cgroup_apply(root_v1, path, len, "/memory.limit_in_bytes", &limit); }
    }
    line = (*end == 0 ? end : end + 1);
  }
  return limit;
}

static void mi_prof_limits_of_system(mi_prof_limits_t* limits) {
  static char text[4096];       // one thread at a time comes here
  const long pages = sysconf(_SC_PHYS_PAGES);
  if (pages > 0) { mi_prof_limit_lower(&limits->resident, (uint64_t)pages * _mi_os_page_size()); }
  if (mi_prof_text_read("/proc/self/cgroup", text, sizeof(text))) {
    mi_prof_limit_lower(&limits->resident, _mi_prof_cgroup_limit(text, "/sys/fs/cgroup", "/sys/fs/cgroup/memory"));
  }
}

#elif defined(_WIN32)

static void mi_prof_limits_of_system(mi_prof_limits_t* limits) {
  MEMORYSTATUSEX memory;
  memory.dwLength = sizeof(memory);
  if (GlobalMemoryStatusEx(&memory)) { mi_prof_limit_lower(&limits->resident, memory.ullTotalPhys); }
  JOBOBJECT_EXTENDED_LIMIT_INFORMATION job;
  if (QueryInformationJobObject(NULL, JobObjectExtendedLimitInformation, &job, sizeof(job), NULL)) {
    const DWORD flags = job.BasicLimitInformation.LimitFlags;
    if ((flags & JOB_OBJECT_LIMIT_PROCESS_MEMORY) != 0) { mi_prof_limit_lower(&limits->address_space, job.ProcessMemoryLimit); }
    if ((flags & JOB_OBJECT_LIMIT_JOB_MEMORY) != 0)     { mi_prof_limit_lower(&limits->address_space, job.JobMemoryLimit); }
  }
}

#elif defined(__APPLE__)

static void mi_prof_limits_of_system(mi_prof_limits_t* limits) {
  uint64_t memory = 0;
  size_t size = sizeof(memory);
  if (sysctlbyname("hw.memsize", &memory, &size, NULL, 0) == 0 && memory > 0) { mi_prof_limit_lower(&limits->resident, memory); }
}

#else

static void mi_prof_limits_of_system(mi_prof_limits_t* limits) {
  MI_UNUSED(limits);
}

#endif

#if MI_PROF_USE_POSIX
static void mi_prof_limit_apply_rlimit(int resource, uint64_t* limit) {
  struct rlimit r;
  if (getrlimit(resource, &r) == 0 && r.rlim_cur != RLIM_INFINITY) { mi_prof_limit_lower(limit, (uint64_t)r.rlim_cur); }
}
#endif

static size_t mi_prof_percent(uint64_t x, uint64_t limit) {
  return (limit == UINT64_MAX ? 0 : (x >= limit ? 100 : (size_t)((double)x*100.0/(double)limit)));
}

// In percent of the limit that is nearest; 0 if the system does not say.
static size_t mi_prof_limit_share(void) {
  const mi_prof_errno_t e = mi_prof_errno_save();
  mi_prof_limits_t limits = { UINT64_MAX, UINT64_MAX };
  mi_prof_limits_of_system(&limits);
  #if MI_PROF_USE_POSIX
  #if defined(RLIMIT_RSS)
  mi_prof_limit_apply_rlimit(RLIMIT_RSS, &limits.resident);
  #endif
  #if defined(RLIMIT_AS)
  mi_prof_limit_apply_rlimit(RLIMIT_AS, &limits.address_space);
  #endif
  #endif
  size_t resident;
  size_t address_space;
  _mi_prof_prim_memory(&resident, &address_space);
  mi_prof_errno_restore(e);
  const size_t a = mi_prof_percent(resident, limits.resident);
  const size_t b = mi_prof_percent(address_space, limits.address_space);
  return (a > b ? a : b);
}

// Replaced by tests.
mi_decl_hidden extern size_t (*_mi_prof_memory_share)(void);
size_t (*_mi_prof_memory_share)(void) = &mi_prof_limit_share;
