// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.
#pragma once
#ifndef TEST_PROFILE_FILES_H
#define TEST_PROFILE_FILES_H

// For tests that write profiles: a folder for them, what mimalloc says, and child processes. Include it first.

#include "test-profile.h"

#if defined(_WIN32)
#include <direct.h>
#include <process.h>
#define popen     _popen
#define pclose    _pclose
#define getpid    _getpid
#else
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#endif

static const char* self;        // how to run this program

test_fun bool starts_with(const char* s, const char* prefix) { return strncmp(s, prefix, strlen(prefix)) == 0; }

/* -----------------------------------------------------------
  A folder for the files of this test
----------------------------------------------------------- */

static char dir[300];

test_fun void dir_path(char* buf, size_t size, const char* name) { snprintf(buf, size, "%s/%s", dir, name); }

#define path_of(var,name)  char var[400]; dir_path(var, sizeof(var), name)

test_fun void dir_create(void) {
  #if defined(_WIN32)
  snprintf(dir, sizeof(dir), "mi_prof-test-%d", (int)getpid());
  check(_mkdir(dir) == 0);
  #else
  const char* const tmp = getenv("TMPDIR");
  snprintf(dir, sizeof(dir), "%.200s/mi_prof-test-XXXXXX", (tmp != NULL ? tmp : "/tmp"));
  check(mkdtemp(dir) != NULL);
  #endif
}

test_fun void dir_remove(void) {
  #if defined(_WIN32)
  check(_rmdir(dir) == 0);
  #else
  check(rmdir(dir) == 0);
  #endif
}

// Number of files in the folder. With `prefix`, those whose names start with it; `found` is the name of one.
test_fun size_t dir_count(const char* prefix, char* found, size_t found_size) {
  size_t n = 0;
  #if defined(_WIN32)
  char pattern[400];
  snprintf(pattern, sizeof(pattern), "%s\\*", dir);
  WIN32_FIND_DATAA data;
  const HANDLE h = FindFirstFileA(pattern, &data);
  if (h == INVALID_HANDLE_VALUE) return 0;
  do {
    const char* const name = data.cFileName;
  #else
  DIR* const d = opendir(dir);
  if (d == NULL) return 0;
  for (struct dirent* e; (e = readdir(d)) != NULL; ) {
    const char* const name = e->d_name;
  #endif
    if (strcmp(name, ".") != 0 && strcmp(name, "..") != 0 && starts_with(name, prefix)) {
      n++;
      if (found != NULL) { snprintf(found, found_size, "%s", name); }
    }
  #if defined(_WIN32)
  } while (FindNextFileA(h, &data));
  FindClose(h);
  #else
  }
  closedir(d);
  #endif
  return n;
}

test_fun void file_write(const char* path, const char* text) {
  FILE* const f = fopen(path, "wb");
  check(f != NULL);
  if (f == NULL) return;
  fputs(text, f);
  fclose(f);
}

// Read the start of a file. Returns the number of bytes, 0 if there is no file.
test_fun size_t file_read(const char* path, char* buf, size_t size) {
  FILE* const f = fopen(path, "rb");
  if (f == NULL) { buf[0] = 0; return 0; }
  const size_t n = fread(buf, 1, size - 1, f);
  buf[n] = 0;
  fclose(f);
  return n;
}

test_fun bool file_is(const char* path, const char* text) {
  char buf[256];
  file_read(path, buf, sizeof(buf));
  return (strcmp(buf, text) == 0);
}

test_fun bool file_is_text_profile(const char* path) {
  char buf[64];
  return (file_read(path, buf, sizeof(buf)) > 20 && starts_with(buf, "heap profile:"));
}

test_fun bool file_is_gzip(const char* path) {
  char buf[64];
  return (file_read(path, buf, sizeof(buf)) > 20 && (unsigned char)buf[0] == 0x1F && (unsigned char)buf[1] == 0x8B && buf[2] == 8);
}

/* -----------------------------------------------------------
  Output of mimalloc
----------------------------------------------------------- */

static size_t output_lines;
static char output[8*1024];

test_fun void output_take(const char* msg, void* arg) {
  (void)arg;
  for (const char* p = msg; *p != 0; p++) { output_lines += (*p == '\n'); }
  const size_t len = strlen(output);
  snprintf(output + len, sizeof(output) - len, "%s", msg);
}

test_fun void output_reset(void) {
  output_lines = 0;
  output[0] = 0;
}

/* -----------------------------------------------------------
  Child processes
----------------------------------------------------------- */

test_fun void set_env(const char* name, const char* value) {    // NULL: remove
  #if defined(_WIN32)
  char buf[600];
  snprintf(buf, sizeof(buf), "%s=%s", name, (value == NULL ? "" : value));
  _putenv(buf);
  #else
  if (value == NULL) { unsetenv(name); } else { setenv(name, value, 1); }
  #endif
}

static char child_output[256*1024];

// Run this program with an argument. Returns its exit code; what it writes is in `child_output`.
test_fun int run_child(const char* what) {
  char command[2000];
  #if defined(_WIN32)
  snprintf(command, sizeof(command), "\"\"%s\" %s 2>&1\"", self, what);
  #else
  snprintf(command, sizeof(command), "'%s' %s 2>&1", self, what);
  #endif
  fflush(stdout);
  FILE* const f = popen(command, "r");
  if (f == NULL) return -1;
  const size_t n = fread(child_output, 1, sizeof(child_output) - 1, f);
  child_output[n] = 0;
  const int status = pclose(f);
  #if defined(_WIN32)
  return status;
  #else
  return (WIFEXITED(status) ? WEXITSTATUS(status) : -1);
  #endif
}

#endif // TEST_PROFILE_FILES_H
