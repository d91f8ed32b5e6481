// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.

// This file is included in `src/profile-prim.c`

#if !defined(MI_IN_PROFILE_C)
#error "this file should be included from 'profile-prim.c' (as it is a part of that)"
#endif

// A file that appears complete or not at all. Nothing here allocates, uses libc's buffers, or changes `errno`.

#include "mimalloc.h"
#include "mimalloc/internal.h"
#include "mimalloc/atomic.h"
#include "profile-internal.h"

#include <errno.h>

#if defined(_WIN32)
  #include <windows.h>
#elif !defined(__wasi__)
  #include <fcntl.h>
  #include <stdio.h>            // rename
  #include <unistd.h>
  #include <sys/resource.h>     // getrlimit
  #include <sys/stat.h>
#endif

static bool mi_prof_file_fail(mi_prof_file_t* file, const char* error, int error_code) {
  if (file->error == NULL) {   // the first error is the cause
    file->error = error;
    file->error_code = error_code;
  }
  return false;
}

#if MI_PROF_USE_POSIX || defined(_WIN32)

#define MI_PROF_FILE_TRIES  (100)

// Name the temporary file: hidden, in the folder of the target. The process id is not enough as containers that share a folder may share it.
static bool mi_prof_file_temp_path(mi_prof_file_t* file) {
  static _Atomic(uintptr_t) seq;  // = 0
  size_t dir = 0;
  for (size_t i = 0; file->path[i] != 0; i++) {
    if (file->path[i] == '/') { dir = i + 1; }
    #if defined(_WIN32)
    if (file->path[i] == '\\' || file->path[i] == ':') { dir = i + 1; }
    #endif
  }
  if (dir + 64 > sizeof(file->temp_path)) return false;
  _mi_memcpy(file->temp_path, file->path, dir);
  _mi_snprintf(file->temp_path + dir, sizeof(file->temp_path) - dir, ".mi_prof-%zu-%zu.tmp",
               _mi_prof_prim_process_id(), (size_t)mi_atomic_increment_relaxed(&seq));
  return true;
}

#endif

#if MI_PROF_USE_POSIX

#ifndef O_CLOEXEC
#define O_CLOEXEC   0
#endif
#ifndef O_NOFOLLOW
#define O_NOFOLLOW  0
#endif

static bool mi_prof_file_id(const char* path, mi_prof_file_id_t* id) {
  struct stat st;
  if (lstat(path, &st) != 0 || !S_ISREG(st.st_mode)) return false;
  id->volume = (uint64_t)st.st_dev;
  id->number = (uint64_t)st.st_ino;
  return true;
}

static void mi_prof_file_remove(const char* path) {
  (void)unlink(path);
}

// The target may be missing, or be a regular file.
static bool mi_prof_file_check_target(mi_prof_file_t* file) {
  struct stat st;
  if (lstat(file->path, &st) == 0) {
    return (S_ISREG(st.st_mode) ? true : mi_prof_file_fail(file, "the target exists and is not a regular file", 0));
  }
  return (errno == ENOENT ? true : mi_prof_file_fail(file, "the target is not accessible", errno));
}

static bool mi_prof_file_create(mi_prof_file_t* file) {
  for (int i = 0; i < MI_PROF_FILE_TRIES; i++) {
    if (!mi_prof_file_temp_path(file)) return mi_prof_file_fail(file, "the path is too long", ENAMETOOLONG);
    const int fd = mi_prof_sys_open(file->temp_path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd >= 0) {
      file->handle = fd;
      return true;
    }
    if (errno != EEXIST) break;
  }
  return mi_prof_file_fail(file, "unable to create a file in the folder of the target", errno);
}

static ssize_t mi_prof_sys_write(int fd, const void* buf, size_t size) {
  ssize_t n;
  do {
    #if defined(__linux__) && defined(SYS_write)
    n = (ssize_t)syscall(SYS_write, fd, buf, size);
    #else
    n = write(fd, buf, size);
    #endif
  } while (n < 0 && errno == EINTR);
  return n;
}

// A write over the limit on file sizes would send a signal that ends the program, so it must not be tried.
static bool mi_prof_file_exceeds_limit(int fd, size_t size) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return false;
  const off_t pos = lseek(fd, 0, SEEK_CUR);
  if (pos < 0) return false;
  return ((uint64_t)pos > (uint64_t)limit.rlim_cur || size > (uint64_t)limit.rlim_cur - (uint64_t)pos);
}

static bool mi_prof_file_put(mi_prof_file_t* file, const uint8_t* p, size_t size) {
  const int fd = (int)file->handle;
  if (mi_prof_file_exceeds_limit(fd, size)) return mi_prof_file_fail(file, "the limit on file sizes is reached", EFBIG);
  while (size > 0) {
    const ssize_t n = mi_prof_sys_write(fd, p, (size < MI_GiB ? size : MI_GiB));
    if (n <= 0) return mi_prof_file_fail(file, "unable to write", (n < 0 ? errno : ENOSPC));
    p += n;
    size -= (size_t)n;
  }
  return true;
}

static void mi_prof_file_finish(mi_prof_file_t* file, bool commit) {
  const int fd = (int)file->handle;
  if (commit && fchmod(fd, 0600) != 0) { mi_prof_file_fail(file, "unable to set the mode", errno); }   // whatever the umask is
  if (mi_prof_sys_close(fd) != 0 && errno != EINTR) { mi_prof_file_fail(file, "unable to write", errno); }
  if (commit && file->error == NULL && mi_prof_file_check_target(file)) {
    if (rename(file->temp_path, file->path) == 0) return;
    mi_prof_file_fail(file, "unable to rename into place", errno);
  }
  (void)unlink(file->temp_path);
}

#elif defined(_WIN32)

static bool mi_prof_win_path(const char* path, WCHAR* wpath, int size) {
  return (MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, wpath, size) > 0);
}

// What is at `path`. `is_file`: a file on a disk (and not a name such as `NUL`).
static bool mi_prof_win_open(const WCHAR* path, bool* is_file, BY_HANDLE_FILE_INFORMATION* info) {
  const HANDLE h = CreateFileW(path, 0, FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE, NULL, OPEN_EXISTING,
                               FILE_FLAG_OPEN_REPARSE_POINT | FILE_FLAG_BACKUP_SEMANTICS, NULL);
  if (h == INVALID_HANDLE_VALUE) return false;
  *is_file = (GetFileType(h) == FILE_TYPE_DISK && GetFileInformationByHandle(h, info) &&
              (info->dwFileAttributes & (FILE_ATTRIBUTE_DIRECTORY | FILE_ATTRIBUTE_REPARSE_POINT | FILE_ATTRIBUTE_DEVICE)) == 0);
  CloseHandle(h);
  return true;
}

static bool mi_prof_file_id(const char* path, mi_prof_file_id_t* id) {
  WCHAR wpath[1024];
  BY_HANDLE_FILE_INFORMATION info;
  bool is_file;
  if (!mi_prof_win_path(path, wpath, 1024) || !mi_prof_win_open(wpath, &is_file, &info) || !is_file) return false;
  id->volume = info.dwVolumeSerialNumber;
  id->number = ((uint64_t)info.nFileIndexHigh << 32) | info.nFileIndexLow;
  return true;
}

static void mi_prof_file_remove(const char* path) {
  WCHAR wpath[1024];
  if (mi_prof_win_path(path, wpath, 1024)) { (void)DeleteFileW(wpath); }
}

// The target may be missing.
static bool mi_prof_file_check_target(mi_prof_file_t* file) {
  WCHAR path[1024];
  if (!mi_prof_win_path(file->path, path, 1024)) return mi_prof_file_fail(file, "the path is too long or no valid utf-8", (int)GetLastError());
  BY_HANDLE_FILE_INFORMATION info;
  bool is_file;
  if (!mi_prof_win_open(path, &is_file, &info)) {
    const DWORD err = GetLastError();
    return (err == ERROR_FILE_NOT_FOUND ? true : mi_prof_file_fail(file, "the target is not accessible", (int)err));
  }
  return (is_file ? true : mi_prof_file_fail(file, "the target exists and is not a regular file", 0));
}

static bool mi_prof_file_create(mi_prof_file_t* file) {
  for (int i = 0; i < MI_PROF_FILE_TRIES; i++) {
    WCHAR path[1024];
    if (!mi_prof_file_temp_path(file) || !mi_prof_win_path(file->temp_path, path, 1024)) {
      return mi_prof_file_fail(file, "the path is too long or no valid utf-8", (int)ERROR_FILENAME_EXCED_RANGE);
    }
    const HANDLE h = CreateFileW(path, GENERIC_WRITE, 0, NULL, CREATE_NEW, FILE_ATTRIBUTE_NORMAL, NULL);
    if (h != INVALID_HANDLE_VALUE) {
      file->handle = (intptr_t)h;
      return true;
    }
    if (GetLastError() != ERROR_FILE_EXISTS) break;
  }
  return mi_prof_file_fail(file, "unable to create a file in the folder of the target", (int)GetLastError());
}

static bool mi_prof_file_put(mi_prof_file_t* file, const uint8_t* p, size_t size) {
  while (size > 0) {
    DWORD n = 0;
    if (!WriteFile((HANDLE)file->handle, p, (DWORD)(size < MI_GiB ? size : MI_GiB), &n, NULL) || n == 0) {
      return mi_prof_file_fail(file, "unable to write", (int)GetLastError());
    }
    p += n;
    size -= n;
  }
  return true;
}

static void mi_prof_file_finish(mi_prof_file_t* file, bool commit) {
  WCHAR temp[1024];
  WCHAR path[1024];
  if (!CloseHandle((HANDLE)file->handle)) { mi_prof_file_fail(file, "unable to write", (int)GetLastError()); }
  if (!mi_prof_win_path(file->temp_path, temp, 1024)) return;   // it did when it was created
  if (commit && file->error == NULL && mi_prof_file_check_target(file)) {
    if (mi_prof_win_path(file->path, path, 1024) && MoveFileExW(temp, path, MOVEFILE_REPLACE_EXISTING)) return;
    mi_prof_file_fail(file, "unable to rename into place", (int)GetLastError());
  }
  (void)DeleteFileW(temp);
}

#else

static bool mi_prof_file_id(const char* path, mi_prof_file_id_t* id) {
  MI_UNUSED(path); MI_UNUSED(id); return false;
}

static void mi_prof_file_remove(const char* path) {
  MI_UNUSED(path);
}

static bool mi_prof_file_check_target(mi_prof_file_t* file) {
  return mi_prof_file_fail(file, "no files on this system", 0);
}

static bool mi_prof_file_create(mi_prof_file_t* file) {
  MI_UNUSED(file); return false;
}

static bool mi_prof_file_put(mi_prof_file_t* file, const uint8_t* p, size_t size) {
  MI_UNUSED(file); MI_UNUSED(p); MI_UNUSED(size); return false;
}

static void mi_prof_file_finish(mi_prof_file_t* file, bool commit) {
  MI_UNUSED(file); MI_UNUSED(commit);
}

#endif

// The error state of the program.
typedef struct mi_prof_errno_s {
  int           err;
  #if defined(_WIN32)
  unsigned long last_error;
  #endif
} mi_prof_errno_t;

static mi_prof_errno_t mi_prof_errno_save(void) {
  mi_prof_errno_t e;
  e.err = errno;
  #if defined(_WIN32)
  e.last_error = GetLastError();
  #endif
  return e;
}

static void mi_prof_errno_restore(mi_prof_errno_t e) {
  errno = e.err;
  #if defined(_WIN32)
  SetLastError(e.last_error);
  #endif
}

bool _mi_prof_prim_file_open(mi_prof_file_t* file, const char* path) {
  const mi_prof_errno_t e = mi_prof_errno_save();
  file->handle = -1;
  file->path = path;
  file->error = NULL;
  file->error_code = 0;
  file->temp_path[0] = 0;
  bool ok;
  if (path == NULL || path[0] == 0) { ok = mi_prof_file_fail(file, "the path is empty", EINVAL); }
  else { ok = (mi_prof_file_check_target(file) && mi_prof_file_create(file)); }
  mi_prof_errno_restore(e);
  return ok;
}

bool _mi_prof_prim_file_write(const void* data, size_t size, void* arg) {
  mi_prof_file_t* const file = (mi_prof_file_t*)arg;
  if (file->error != NULL || file->handle == -1) return false;
  const mi_prof_errno_t e = mi_prof_errno_save();
  const bool ok = mi_prof_file_put(file, (const uint8_t*)data, size);
  mi_prof_errno_restore(e);
  return ok;
}

bool _mi_prof_prim_file_close(mi_prof_file_t* file, bool commit) {
  if (file->handle == -1) return false;
  const mi_prof_errno_t e = mi_prof_errno_save();
  mi_prof_file_finish(file, commit && file->error == NULL);
  file->handle = -1;
  mi_prof_errno_restore(e);
  return (commit && file->error == NULL);
}

bool _mi_prof_prim_file_id(const char* path, mi_prof_file_id_t* id) {
  const mi_prof_errno_t e = mi_prof_errno_save();
  const bool found = mi_prof_file_id(path, id);
  mi_prof_errno_restore(e);
  return found;
}

void _mi_prof_prim_file_remove(const char* path) {
  const mi_prof_errno_t e = mi_prof_errno_save();
  mi_prof_file_remove(path);
  mi_prof_errno_restore(e);
}

bool _mi_prof_prim_env_exceeds(const char* name, const char* value, size_t size) {
  #if defined(_WIN32)
  MI_UNUSED(value);
  return (GetEnvironmentVariableA(name, NULL, 0) > size);
  #else
  MI_UNUSED(name);
  return (_mi_strlen(value) + 1 >= size);   // cut, so it may just have fitted
  #endif
}
