// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.
#if !defined(MI_IN_PROFILE_C)
#error "this file should be included from 'profile.c'"
// add includes help an IDE
#include "profile-internal.h"
#endif

/* -----------------------------------------------------------
  Names for labels. A sample holds the index of a name; index 0
  stands for none. Names stay until the session ends.
----------------------------------------------------------- */

#define MI_PROF_NAMES       (1024)
#define MI_PROF_NAME_SLOTS  (2048)
#define MI_PROF_HEAPS       (256)

// Names of the thread and the heap; 0 for none.
typedef struct mi_prof_labels_s {
  uint32_t              thread;
  uint32_t              heap;
} mi_prof_labels_t;

typedef struct mi_prof_names_s {
  size_t                count;
  mi_prof_name_t        names[MI_PROF_NAMES];
  uint16_t              slots[MI_PROF_NAME_SLOTS];   // a hash table of indices with open addressing; 0 is free
} mi_prof_names_t;

static mi_lock_t        mi_prof_label_lock = MI_LOCK_INITIALIZER;    // for all here
static mi_prof_names_t* mi_prof_names;        // NULL if the session has no labels
static mi_memid_t       mi_prof_names_memid;

// Heaps with a name; these outlive a session.
typedef struct mi_prof_heap_name_s {
  const mi_heap_t*      heap;
  uintptr_t             cookie;               // of the heap, whose address may be used again
  mi_prof_name_t        name;
} mi_prof_heap_name_t;

static mi_prof_heap_name_t mi_prof_heap_names[MI_PROF_HEAPS];

static bool mi_prof_label_init(bool has_names) {
  if (!has_names) return true;
  mi_memid_t memid;
  mi_prof_names_t* const names = (mi_prof_names_t*)_mi_prof_os_alloc(sizeof(mi_prof_names_t), &memid);
  if (names == NULL) return false;
  _mi_memzero_var(*names);
  names->count = 1;
  mi_lock(&mi_prof_label_lock) {
    mi_prof_names = names;
    mi_prof_names_memid = memid;
  }
  return true;
}

static void mi_prof_label_done(void) {
  mi_prof_names_t* names = NULL;
  mi_lock(&mi_prof_label_lock) {
    names = mi_prof_names;
    mi_prof_names = NULL;
  }
  if (names != NULL) { _mi_os_free(names, sizeof(mi_prof_names_t), mi_prof_names_memid); }
}

// With the lock. Returns the index of a name; 0 if it is empty, or if there is no room.
static uint32_t mi_prof_name_intern(const char* name) {
  mi_prof_names_t* const n = mi_prof_names;
  if (n == NULL || name[0] == 0) return 0;
  uint64_t hash = 0;
  for (size_t i = 0; name[i] != 0; i++) { hash = mi_prof_mix(hash ^ (uint8_t)name[i]); }
  size_t slot = (size_t)(hash % MI_PROF_NAME_SLOTS);
  while (n->slots[slot] != 0) {
    if (_mi_streq(n->names[n->slots[slot]], name)) return n->slots[slot];
    slot = (slot + 1) % MI_PROF_NAME_SLOTS;
  }
  if (n->count == MI_PROF_NAMES) return 0;
  _mi_strlcpy(n->names[n->count], name, MI_PROF_NAME_SIZE);
  n->slots[slot] = (uint16_t)n->count;
  return (uint32_t)n->count++;
}

// With the lock. Returns NULL if the heap has no name.
static mi_prof_heap_name_t* mi_prof_heap_name_find(const mi_heap_t* heap) {
  for (size_t i = 0; i < MI_PROF_HEAPS; i++) {
    if (mi_prof_heap_names[i].heap == heap) return &mi_prof_heap_names[i];
  }
  return NULL;
}

bool mi_prof_name_heap(mi_heap_t* heap, const char* name) mi_attr_noexcept {
  static size_t next;           // where the one is that was named first
  if (heap == NULL) return false;
  mi_lock(&mi_prof_label_lock) {
    mi_prof_heap_name_t* entry = mi_prof_heap_name_find(heap);
    if (entry == NULL && name != NULL) {
      entry = &mi_prof_heap_names[next];
      next = (next + 1) % MI_PROF_HEAPS;
    }
    if (entry != NULL) {
      entry->heap = heap;
      entry->cookie = _mi_prof_heap_cookie(heap);
      _mi_strlcpy(entry->name, (name == NULL ? "" : name), MI_PROF_NAME_SIZE);
    }
  }
  return true;
}

// The labels of a sample in `heap`, which the calling thread takes.
static mi_prof_labels_t mi_prof_labels_get(const mi_heap_t* heap, uint8_t features) {
  mi_prof_labels_t labels = { 0, 0 };
  if ((features & (MI_PROF_LABEL_THREAD | MI_PROF_LABEL_HEAP)) == 0) return labels;
  mi_prof_name_t name;
  name[0] = 0;
  if ((features & MI_PROF_LABEL_THREAD) != 0) { _mi_prof_prim_thread_name(name, sizeof(name)); }
  mi_lock(&mi_prof_label_lock) {
    labels.thread = mi_prof_name_intern(name);
    const mi_prof_heap_name_t* const entry = ((features & MI_PROF_LABEL_HEAP) != 0 ? mi_prof_heap_name_find(heap) : NULL);
    if (entry != NULL && entry->cookie == _mi_prof_heap_cookie(heap)) { labels.heap = mi_prof_name_intern(entry->name); }
  }
  return labels;
}
