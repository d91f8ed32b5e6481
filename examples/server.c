// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.

/* ----------------------------------------------------------------------------
  A server that knows nothing of mi_prof, and whose memory grows: who keeps it?
  docs/finding-a-leak.md finds out.

  Usage: server SECONDS
-----------------------------------------------------------------------------*/

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NOINLINE __attribute__((noinline))

enum { USERS = 2000, PAGES = 500, REQUESTS_PER_MS = 60 };

typedef struct line_s {
  struct line_s* next;
  char text[200];
} line_t;

typedef struct session_s {
  line_t* history;
  char settings[4000];
} session_t;

static session_t* sessions[USERS];
static char* pages[PAGES];

static unsigned random_number(unsigned below) {
  static unsigned long long state = 88172645463325252u;
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return (unsigned)(state % below);
}

NOINLINE void page_load(unsigned page) {
  free(pages[page]);
  pages[page] = malloc(20000 + random_number(20000));
  if (pages[page] == NULL) abort();
  memset(pages[page], 'x', 20000);
}

NOINLINE void session_open(unsigned user) {
  sessions[user] = calloc(1, sizeof(session_t));
  if (sessions[user] == NULL) abort();
}

NOINLINE void session_remember(session_t* session, unsigned page) {
  line_t* const line = malloc(sizeof(line_t));
  if (line == NULL) abort();
  snprintf(line->text, sizeof(line->text), "GET /page/%u", page);
  line->next = session->history;
  session->history = line;
}

NOINLINE void session_close(unsigned user) {
  free(sessions[user]);
  sessions[user] = NULL;
}

NOINLINE void serve(unsigned user) {
  const unsigned page = random_number(PAGES);
  if (sessions[user] == NULL) session_open(user);
  if (pages[page] == NULL || random_number(100) == 0) page_load(page);
  session_remember(sessions[user], page);
  if (random_number(20) == 0) session_close(user);
}

int main(int argc, char** argv) {
  const time_t end = time(NULL) + (argc == 2 ? atoi(argv[1]) : 0);
  while (time(NULL) < end) {
    for (int i = 0; i < REQUESTS_PER_MS; i++) { serve(random_number(USERS)); }
    const struct timespec pause = { 0, 1000*1000 };
    nanosleep(&pause, NULL);
  }
  return 0;
}
