// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.

// This file is included in `src/profile-prim.c`

#if !defined(MI_IN_PROFILE_C)
#error "this file should be included from 'profile-prim.c' (as it is a part of that)"
#endif

// A walk up the stack, frame by frame:
//
// - by unwind tables (`mi_prof_step_cfi`), which the compiler makes for all code as long as it is not told not to. They say where
//   the caller's registers are. What they say about a return address is remembered, as the same ones come again and again.
// - by frame pointers (`mi_prof_step_fp`). In code that is compiled without them it is just a register, which may hold anything.
//
// Either way a frame is read only if it lies further up the stack, aligned, below the end of the stack, and can be read at all.
// Nothing here takes a lock or allocates.

typedef struct mi_prof_cursor_s {
  uintptr_t       pc;
  uintptr_t       sp;
  uintptr_t       fp;
  mi_prof_range_t stack;      // what may be read
  mi_prof_range_t readable;   // the part of it that is known to be readable
  size_t          signals;    // signal frames so far
  #if MI_PROF_USE_CFI
  mi_prof_eh_t    eh;         // of the module of the last frame
  #endif
} mi_prof_cursor_t;


/* -----------------------------------------------------------
  The stack that we are on
----------------------------------------------------------- */

#define MI_PROF_STACK_SIZE_MAX   (64*MI_MiB)    // to search for a frame on a stack that we do not know
#define MI_PROF_FRAME_SIZE_MAX   (MI_MiB)       // to be believed of a frame pointer

#if defined(__APPLE__)
#define MI_PROF_STACKS_STAY      (1)            // a thread's stack within its bounds is all there
#else
#define MI_PROF_STACKS_STAY      (0)            // its memory may be the program's
#endif

#if defined(__linux__)

static mi_prof_range_t mi_prof_main_bounds;                     // set once
static mi_decl_thread mi_prof_range_t mi_prof_thread_bounds;    // empty until they are looked for

// Find the main thread's stack: it grows down from what the kernel left at its end, as far as its limit allows.
static void mi_prof_bounds_init(void) {
  const size_t most = 128*MI_MiB;    // the kernel keeps mappings away from this much
  struct rlimit limit;
  const uintptr_t end = (uintptr_t)getauxval(AT_RANDOM);
  if (end <= most || getrlimit(RLIMIT_STACK, &limit) != 0) return;
  mi_prof_main_bounds.start = end - (limit.rlim_cur < most ? (size_t)limit.rlim_cur : most);
  mi_prof_main_bounds.end   = end & ~(uintptr_t)15;
}

#if !defined(__GLIBC__)
// By its symbol, as the header shows it only with `_GNU_SOURCE`.
mi_prof_decl_extern int mi_prof_pthread_getattr(pthread_t thread, pthread_attr_t* attr) __asm__("pthread_getattr_np");
#endif

// Find the stack that the thread was started with.
static void mi_prof_thread_bounds_init(mi_prof_range_t* bounds) {
  bounds->start = bounds->end = 1;    // none
  #if defined(__GLIBC__)
  // `pthread_getattr_np` allocates while it holds a lock of the thread. But the thread's descriptor is at the end of its stack.
  const uintptr_t self = (uintptr_t)_mi_prim_thread_id();
  mi_prof_maps_t maps;
  mi_prof_mapping_t map;
  if (!mi_prof_maps_open(&maps)) return;
  while (mi_prof_maps_read(&maps, &map)) {
    mi_prof_maps_path(&maps, NULL, 0);
    if (map.start <= self && self < map.end) {
      bounds->start = map.start;
      bounds->end = self;
      break;
    }
  }
  mi_prof_maps_close(&maps);
  #else
  pthread_attr_t attr;    // musl reads it from the descriptor
  void* start = NULL;
  size_t size = 0;
  if (mi_prof_pthread_getattr(pthread_self(), &attr) == 0 && pthread_attr_getstack(&attr, &start, &size) == 0) {
    bounds->start = (uintptr_t)start;
    bounds->end = bounds->start + size;
  }
  #endif
}

// Is `sp` on the thread's stack, or its signal stack? Then set the bounds.
static bool mi_prof_bounds_find(uintptr_t sp, mi_prof_range_t* bounds) {
  if (mi_prof_thread_bounds.end == 0) { mi_prof_thread_bounds_init(&mi_prof_thread_bounds); }
  *bounds = mi_prof_thread_bounds;
  if (mi_prof_range_has(bounds, sp)) return true;
  stack_t stack;
  if (sigaltstack(NULL, &stack) != 0 || (stack.ss_flags & SS_ONSTACK) == 0) return false;
  bounds->start = (uintptr_t)stack.ss_sp;
  bounds->end = bounds->start + stack.ss_size;
  return mi_prof_range_has(bounds, sp);
}

#elif defined(__APPLE__)

static const mi_prof_range_t mi_prof_main_bounds = { 0, 0 };

static void mi_prof_bounds_init(void) { }

// This reads the thread's descriptor only.
static bool mi_prof_bounds_find(uintptr_t sp, mi_prof_range_t* bounds) {
  const pthread_t self = pthread_self();
  bounds->end   = (uintptr_t)pthread_get_stackaddr_np(self);
  bounds->start = bounds->end - pthread_get_stacksize_np(self);
  return mi_prof_range_has(bounds, sp);
}

#else

static const mi_prof_range_t mi_prof_main_bounds = { 0, 0 };

static void mi_prof_bounds_init(void) { }

// Any stack, as far as it can be read.
static bool mi_prof_bounds_find(uintptr_t sp, mi_prof_range_t* bounds) {
  bounds->start = sp;
  bounds->end = (sp < UINTPTR_MAX - MI_PROF_STACK_SIZE_MAX ? sp + MI_PROF_STACK_SIZE_MAX : UINTPTR_MAX);
  return true;
}

#endif

static mi_decl_noinline bool mi_prof_cursor_probe(mi_prof_cursor_t* cursor, uintptr_t p, size_t size) {
  if (!mi_prof_is_readable(p, size)) return false;
  const uintptr_t page  = 4096;
  const uintptr_t start = p & ~(page - 1);
  if (start != cursor->readable.end) { cursor->readable.start = start; }
  cursor->readable.end = ((p + size - 1) & ~(page - 1)) + page;
  return true;
}

// Set the bounds of the stack that we are on. Returns false if it is none that we know: then it is searched for frames page by page.
static bool mi_prof_cursor_set_bounds(mi_prof_cursor_t* cursor, bool search) {
  cursor->readable.start = cursor->readable.end = 0;
  const bool is_main = mi_prof_range_has(&mi_prof_main_bounds, cursor->sp);
  if (is_main) { cursor->stack = mi_prof_main_bounds; }
  if (is_main || (search && mi_prof_bounds_find(cursor->sp, &cursor->stack))) {
    if (is_main || MI_PROF_STACKS_STAY) {
      cursor->readable.start = cursor->sp;
      cursor->readable.end = cursor->stack.end;
    }
    return true;
  }
  cursor->stack.start = cursor->sp;
  cursor->stack.end = (cursor->sp < UINTPTR_MAX - MI_PROF_STACK_SIZE_MAX ? cursor->sp + MI_PROF_STACK_SIZE_MAX : UINTPTR_MAX);
  return false;
}

// Can this part of the stack be read safely?
static inline bool mi_prof_cursor_check(mi_prof_cursor_t* cursor, uintptr_t p, size_t size) {
  if (p % sizeof(uintptr_t) != 0 || p < cursor->sp || p >= cursor->stack.end || cursor->stack.end - p < size) return false;
  if mi_likely(p >= cursor->readable.start && p + size <= cursor->readable.end) return true;
  return mi_prof_cursor_probe(cursor, p, size);
}

// Load a word that passed the check. It may be anything, so it is hidden from those who look for misuse of objects.
#if defined(__GNUC__) || defined(__clang__)
__attribute__((no_sanitize_address))
#endif
static inline uintptr_t mi_prof_load(uintptr_t p) {
  return *(const uintptr_t*)p;
}

static inline uintptr_t mi_prof_strip(uintptr_t pc) {
  #if defined(__aarch64__)
  register uintptr_t x30 __asm__("x30") = pc;
  __asm__ ("hint #7" : "+r" (x30));   // xpaclri: drop the signature of the address
  return x30;
  #else
  return pc;
  #endif
}


typedef enum mi_prof_step_e { MI_PROF_STEP_OK, MI_PROF_STEP_END, MI_PROF_STEP_UNKNOWN } mi_prof_step_t;

/* -----------------------------------------------------------
  A step by the frame pointer: it points to that of the caller, which the return address follows.
----------------------------------------------------------- */

static inline bool mi_prof_step_fp(mi_prof_cursor_t* cursor) {
  #if defined(__riscv)
  const uintptr_t p = cursor->fp - 2*sizeof(uintptr_t);    // these are below it
  #else
  const uintptr_t p = cursor->fp;
  #endif
  if (p - cursor->sp > MI_PROF_FRAME_SIZE_MAX || !mi_prof_cursor_check(cursor, p, 2*sizeof(uintptr_t))) return false;
  cursor->fp = mi_prof_load(p);
  cursor->pc = mi_prof_strip(mi_prof_load(p + sizeof(uintptr_t)));
  cursor->sp = p + 2*sizeof(uintptr_t);
  return true;
}


#if MI_PROF_USE_CFI

/* -----------------------------------------------------------
  The unwind table of the module that an address is in. It may be in a library that was loaded just now, or unloaded and in
  the place of another one.
----------------------------------------------------------- */

#if defined(__GLIBC__) && ((__GLIBC__ << 16) + __GLIBC_MINOR__ >= (2 << 16) + 35)   // knows, without a lock

// By its symbol, as the header shows it only with `_GNU_SOURCE`.
typedef struct mi_prof_dl_object_s {
  unsigned long long flags;
  void* map_start;
  void* map_end;
  void* link_map;
  void* eh_frame_hdr;
  unsigned long long reserved[10];
} mi_prof_dl_object_t;

mi_prof_decl_extern int mi_prof_dl_find_object(void* address, mi_prof_dl_object_t* object) __asm__("_dl_find_object");

static inline void mi_prof_tables_refresh(void) { }

static mi_decl_noinline bool mi_prof_eh_find(uintptr_t pc, mi_prof_eh_t* eh) {
  mi_prof_dl_object_t object;
  if (mi_prof_dl_find_object((void*)pc, &object) != 0 || object.eh_frame_hdr == NULL) return false;
  eh->text.start = (uintptr_t)object.map_start;
  eh->text.end   = (uintptr_t)object.map_end;
  return mi_prof_eh_init(eh, (uintptr_t)object.eh_frame_hdr);
}

#elif defined(__linux__)

// There is no way to ask the loader that takes no lock. So there is a table of all executable mappings, of which a new one takes
// the place of the last but one.
#define MI_PROF_TABLES_MAX   (512)

typedef struct mi_prof_table_s {
  mi_prof_range_t text;
  uintptr_t       base;   // of `.eh_frame_hdr`, or 0
  uintptr_t       tag;
} mi_prof_table_t;

static struct { size_t count; mi_prof_table_t items[MI_PROF_TABLES_MAX]; } mi_prof_tables[2];   // sorted, as `maps` is
static _Atomic(uintptr_t) mi_prof_tables_version;   // of the current one; an even one is in the first place
static _Atomic(uintptr_t) mi_prof_tables_busy;      // 1: a thread makes a new one
static _Atomic(uintptr_t) mi_prof_tables_misses;    // how often an address was not found
static _Atomic(uintptr_t) mi_prof_tables_patience;  // so many misses until it is worth to look again

// Where is the `.eh_frame_hdr` of this image? 0 if there is none.
static uintptr_t mi_prof_image_eh(const mi_prof_image_t* image) {
  MI_PROF_ELF(Ehdr) ehdr;
  if (!mi_prof_image_ehdr(image, &ehdr)) return 0;
  uintptr_t bias = 0;
  uintptr_t base = 0;
  for (size_t i = 0; i < ehdr.e_phnum; i++) {
    MI_PROF_ELF(Phdr) phdr;
    if (!mi_prof_image_read(image, (uint64_t)ehdr.e_phoff + i*sizeof(phdr), &phdr, sizeof(phdr))) return 0;
    if (phdr.p_type == PT_LOAD && phdr.p_offset == 0) { bias = image->start - (uintptr_t)phdr.p_vaddr; }
    if (phdr.p_type == PT_GNU_EH_FRAME) { base = (uintptr_t)phdr.p_vaddr; }
  }
  return (base == 0 ? 0 : bias + base);
}

// Returns false if another thread is at it.
static bool mi_prof_tables_refresh(void) {
  uintptr_t expected = 0;
  if (!mi_atomic_cas_strong_acq_rel(&mi_prof_tables_busy, &expected, (uintptr_t)1)) return false;
  const uintptr_t version = mi_atomic_load_relaxed(&mi_prof_tables_version) + 1;
  mi_prof_table_t* const items = mi_prof_tables[version % 2].items;
  size_t count = 0;
  mi_prof_maps_t maps;
  if (mi_prof_maps_open(&maps)) {
    mi_prof_mapping_t map;
    mi_prof_mapping_t head = { 0, 0, false, false, 1, 0, 0, 0 };   // of the file's header
    while (count < MI_PROF_TABLES_MAX && mi_prof_maps_read(&maps, &map)) {
      mi_prof_maps_path(&maps, NULL, 0);
      if (map.offset == 0 && (map.inode != 0 || map.exec)) { head = map; }    // the vdso has no file
      if (!map.exec) continue;
      const mi_prof_image_t image = { head.start, (size_t)(head.end - head.start), -1 };
      mi_prof_table_t* const item = &items[count++];
      mi_prof_eh_t eh;
      item->text.start = map.start;
      item->text.end = map.end;
      item->base = (head.read && mi_prof_mapping_is_same_file(&head, &map) ? mi_prof_image_eh(&image) : 0);
      if (item->base != 0 && !(mi_prof_is_readable(item->base, 12) && mi_prof_eh_init(&eh, item->base))) { item->base = 0; }
      item->tag = (item->base != 0 ? eh.tag : 0);
    }
    mi_prof_maps_close(&maps);
  }
  mi_prof_tables[version % 2].count = count;
  mi_atomic_store_release(&mi_prof_tables_version, version);
  mi_atomic_store_release(&mi_prof_tables_busy, (uintptr_t)0);
  return true;
}

// Copy the mapping that `pc` is in. Returns false if there is none.
static bool mi_prof_tables_lookup(uintptr_t pc, mi_prof_table_t* table) {
  while (true) {
    const uintptr_t version = mi_atomic_load_acquire(&mi_prof_tables_version);
    const mi_prof_table_t* const items = mi_prof_tables[version % 2].items;
    size_t lo = 0;
    size_t hi = mi_prof_tables[version % 2].count;
    while (lo < hi) {
      const size_t mid = lo + (hi - lo)/2;
      if (items[mid].text.end <= pc) { lo = mid + 1; } else { hi = mid; }
    }
    table->text.start = table->text.end = 0;
    if (lo < MI_PROF_TABLES_MAX) { *table = items[lo]; }
    mi_atomic(thread_fence)(mi_memory_order(acquire));
    if (mi_atomic_load_relaxed(&mi_prof_tables_version) == version) return mi_prof_range_has(&table->text, pc);
  }
}

// As it was when the table was made?
static bool mi_prof_table_eh(const mi_prof_table_t* table, mi_prof_eh_t* eh) {
  eh->text = table->text;
  return (mi_prof_is_readable(table->base, 12) && mi_prof_eh_init(eh, table->base) && eh->tag == table->tag);
}

static mi_decl_noinline bool mi_prof_eh_find(uintptr_t pc, mi_prof_eh_t* eh) {
  mi_prof_table_t table;
  if (mi_prof_tables_lookup(pc, &table)) {
    if (table.base == 0) return false;    // code without a table
    if (mi_prof_table_eh(&table, eh)) return true;
  }
  // It is new. But if looking did not help the last time, as for what is no code at all, wait twice as long.
  const uintptr_t patience = mi_atomic_load_relaxed(&mi_prof_tables_patience);
  if (mi_atomic_increment_relaxed(&mi_prof_tables_misses) < patience) return false;
  if (!mi_prof_tables_refresh()) return false;
  const bool found = mi_prof_tables_lookup(pc, &table);
  mi_atomic_store_relaxed(&mi_prof_tables_misses, (uintptr_t)0);
  mi_atomic_store_relaxed(&mi_prof_tables_patience, (found ? (uintptr_t)0 : (patience < 65536 ? 2*patience + 1 : patience)));
  return (found && table.base != 0 && mi_prof_table_eh(&table, eh));
}

#else

static inline void mi_prof_tables_refresh(void) { }

// Our own module only.
static bool mi_prof_eh_find(uintptr_t pc, mi_prof_eh_t* eh) {
  return (mi_prof_elf_eh(eh) && mi_prof_range_has(&eh->text, pc));
}

#endif


/* -----------------------------------------------------------
  Rules: how to restore the registers of the caller, as far as we need it
----------------------------------------------------------- */

#if defined(__x86_64__)
enum { MI_PROF_REG_FP = 6,  MI_PROF_REG_SP = 7,  MI_PROF_REG_RA = 16 };
#elif defined(__i386__)
enum { MI_PROF_REG_FP = 5,  MI_PROF_REG_SP = 4,  MI_PROF_REG_RA = 8 };
#elif defined(__aarch64__)
enum { MI_PROF_REG_FP = 29, MI_PROF_REG_SP = 31, MI_PROF_REG_RA = 30 };
#elif defined(__riscv)
enum { MI_PROF_REG_FP = 8,  MI_PROF_REG_SP = 2,  MI_PROF_REG_RA = 1 };
#endif

// Where the value of a register of the caller is.
typedef enum mi_prof_place_e {
  MI_PROF_SAME,       // unchanged; of the CFA: the stack pointer plus the offset
  MI_PROF_AT_CFA,     // saved at the CFA plus the offset; of the CFA: the frame pointer plus the offset
  MI_PROF_AT_FP,      // saved at the frame pointer plus the offset
  MI_PROF_NOWHERE,    // by a rule that we do not know; of the return address: there is none, this is the outermost frame
  MI_PROF_AT_SP,      // saved at the stack pointer plus the offset, by a signal
  MI_PROF_UNKNOWN
} mi_prof_place_t;

typedef struct mi_prof_rule_s {
  mi_prof_place_t place;
  intptr_t        offset;
} mi_prof_rule_t;

typedef struct mi_prof_rules_s {
  mi_prof_rule_t cfa;   // the caller's stack pointer (CFA)
  mi_prof_rule_t fp;
  mi_prof_rule_t ra;
  bool           is_signal;   // the return address is where a signal interrupted the caller
} mi_prof_rules_t;

typedef struct mi_prof_cfi_s {
  const uint8_t* p;
  const uint8_t* end;
} mi_prof_cfi_t;

static size_t mi_prof_cfi_bytes(mi_prof_cfi_t* in, size_t size) {   // little endian
  size_t n = 0;
  for (size_t i = 0; i < size && in->p < in->end; i++) { n |= (size_t)*in->p++ << (8*i); }
  return n;
}

static size_t mi_prof_cfi_uleb(mi_prof_cfi_t* in) {
  size_t n = 0;
  for (unsigned shift = 0; in->p < in->end; shift += 7) {
    const uint8_t b = *in->p++;
    if (shift < 8*sizeof(size_t)) { n |= (size_t)(b & 0x7F) << shift; }
    if ((b & 0x80) == 0) break;
  }
  return n;
}

static intptr_t mi_prof_cfi_sleb(mi_prof_cfi_t* in) {
  size_t n = 0;
  for (unsigned shift = 0; in->p < in->end; shift += 7) {
    const uint8_t b = *in->p++;
    if (shift < 8*sizeof(size_t)) { n |= (size_t)(b & 0x7F) << shift; }
    if ((b & 0x80) == 0) {
      if ((b & 0x40) != 0 && shift + 7 < 8*sizeof(size_t)) { n |= ~(size_t)0 << (shift + 7); }
      break;
    }
  }
  return (intptr_t)n;
}

// Size of an encoded pointer (DW_EH_PE), or 0 if we do not know.
static size_t mi_prof_cfi_pointer_size(size_t encoding) {
  switch (encoding & 0x0F) {
    case 0x00: return sizeof(void*);
    case 0x03: case 0x0B: return 4;
    case 0x04: case 0x0C: return 8;
    default:   return 0;
  }
}

// The expressions that are in use, for aligned frames and for signals: a register plus an offset, and for the CFA what is saved there.
static mi_prof_rule_t mi_prof_cfi_expression(mi_prof_cfi_t* in, bool deref) {
  mi_prof_rule_t rule = { MI_PROF_UNKNOWN, 0 };
  const size_t size = mi_prof_cfi_uleb(in);
  if (size > (size_t)(in->end - in->p)) { in->p = in->end; return rule; }
  mi_prof_cfi_t ex = { in->p, in->p + size };
  in->p = ex.end;
  const size_t reg = mi_prof_cfi_bytes(&ex, 1) - 0x70;              // DW_OP_breg
  rule.offset = mi_prof_cfi_sleb(&ex);
  if (deref && mi_prof_cfi_bytes(&ex, 1) != 0x06) return rule;      // DW_OP_deref
  if (ex.p == ex.end && reg == MI_PROF_REG_FP) { rule.place = MI_PROF_AT_FP; }
  if (ex.p == ex.end && reg == MI_PROF_REG_SP) { rule.place = MI_PROF_AT_SP; }
  return rule;
}

static void mi_prof_rules_set_cfa(mi_prof_rules_t* rules, size_t reg) {
  rules->cfa.place = (reg == MI_PROF_REG_SP ? MI_PROF_SAME : (reg == MI_PROF_REG_FP ? MI_PROF_AT_CFA : MI_PROF_UNKNOWN));
}

static void mi_prof_rules_set(mi_prof_rules_t* rules, size_t reg, mi_prof_place_t place, intptr_t offset) {
  const mi_prof_rule_t rule = { place, offset };
  if (reg == MI_PROF_REG_FP) { rules->fp = rule; }
  if (reg == MI_PROF_REG_RA) { rules->ra = rule; }
}

static void mi_prof_rules_restore(mi_prof_rules_t* rules, size_t reg, const mi_prof_rules_t* initial) {
  if (reg == MI_PROF_REG_FP) { rules->fp = initial->fp; }
  if (reg == MI_PROF_REG_RA) { rules->ra = initial->ra; }
}

// Run call frame instructions up to the location `pc`. Returns false at what we do not know.
static bool mi_prof_cfi_run(mi_prof_cfi_t* in, size_t code_align, intptr_t data_align, uintptr_t loc, uintptr_t pc, const mi_prof_rules_t* initial, mi_prof_rules_t* rules) {
  mi_prof_rules_t saved[4];
  size_t depth = 0;
  while (in->p < in->end && loc <= pc) {
    const uint8_t op = *in->p++;
    const size_t  low = op & 0x3F;
    size_t reg;
    switch (op & 0xC0) {
      case 0x40: loc += low*code_align; continue;                                                                                   // advance_loc
      case 0x80: mi_prof_rules_set(rules, low, MI_PROF_AT_CFA, (intptr_t)mi_prof_cfi_uleb(in)*data_align); continue;                // offset
      case 0xC0: mi_prof_rules_restore(rules, low, initial); continue;                                                              // restore
      default: break;
    }
    switch (op) {
      case 0x00: break;                                                                                                             // nop
      case 0x02: loc += mi_prof_cfi_bytes(in,1)*code_align; break;                                                                  // advance_loc1, 2, 4
      case 0x03: loc += mi_prof_cfi_bytes(in,2)*code_align; break;
      case 0x04: loc += mi_prof_cfi_bytes(in,4)*code_align; break;
      case 0x05: reg = mi_prof_cfi_uleb(in); mi_prof_rules_set(rules, reg, MI_PROF_AT_CFA, (intptr_t)mi_prof_cfi_uleb(in)*data_align); break;  // offset_extended
      case 0x11: reg = mi_prof_cfi_uleb(in); mi_prof_rules_set(rules, reg, MI_PROF_AT_CFA, mi_prof_cfi_sleb(in)*data_align); break;            // offset_extended_sf
      case 0x06: mi_prof_rules_restore(rules, mi_prof_cfi_uleb(in), initial); break;                                                // restore_extended
      case 0x07: mi_prof_rules_set(rules, mi_prof_cfi_uleb(in), MI_PROF_NOWHERE, 0); break;                                         // undefined
      case 0x08: mi_prof_rules_set(rules, mi_prof_cfi_uleb(in), MI_PROF_SAME, 0); break;                                            // same_value
      case 0x09:                                                                                                                    // register
      case 0x14:                                                                                                                    // val_offset
        reg = mi_prof_cfi_uleb(in);
        (void)mi_prof_cfi_uleb(in);
        mi_prof_rules_set(rules, reg, MI_PROF_UNKNOWN, 0);
        break;
      case 0x10: {                                                                                                                  // expression
        reg = mi_prof_cfi_uleb(in);
        const mi_prof_rule_t rule = mi_prof_cfi_expression(in, false);
        mi_prof_rules_set(rules, reg, rule.place, rule.offset);
        break;
      }
      case 0x16:                                                                                                                    // val_expression
        reg = mi_prof_cfi_uleb(in);
        (void)mi_prof_cfi_expression(in, false);
        mi_prof_rules_set(rules, reg, MI_PROF_UNKNOWN, 0);
        break;
      case 0x0A:                                                                                                                    // remember_state
        if (depth >= sizeof(saved)/sizeof(saved[0])) return false;
        saved[depth++] = *rules;
        break;
      case 0x0B:                                                                                                                    // restore_state
        if (depth == 0) return false;
        *rules = saved[--depth];
        break;
      case 0x0C: mi_prof_rules_set_cfa(rules, mi_prof_cfi_uleb(in)); rules->cfa.offset = (intptr_t)mi_prof_cfi_uleb(in); break;     // def_cfa
      case 0x12: mi_prof_rules_set_cfa(rules, mi_prof_cfi_uleb(in)); rules->cfa.offset = mi_prof_cfi_sleb(in)*data_align; break;    // def_cfa_sf
      case 0x0D: mi_prof_rules_set_cfa(rules, mi_prof_cfi_uleb(in)); break;                                                         // def_cfa_register
      case 0x0E: rules->cfa.offset = (intptr_t)mi_prof_cfi_uleb(in); break;                                                         // def_cfa_offset
      case 0x13: rules->cfa.offset = mi_prof_cfi_sleb(in)*data_align; break;                                                        // def_cfa_offset_sf
      case 0x0F: rules->cfa = mi_prof_cfi_expression(in, true); break;                                                              // def_cfa_expression
      case 0x2D: break;                                                                                                             // AARCH64_negate_ra_state
      case 0x2E: (void)mi_prof_cfi_uleb(in); break;                                                                                 // GNU_args_size
      default:   return false;
    }
  }
  return true;
}

// The unwind information of a function: { length, distance to its CIE, start of the function, its size, [augmentation], instructions }
typedef struct mi_prof_fde_s {
  size_t        size;         // of the function
  bool          is_signal;
  size_t        code_align;
  intptr_t      data_align;
  mi_prof_cfi_t initial;      // instructions of the CIE, which several functions share
  mi_prof_cfi_t cfi;          // and of this one
} mi_prof_fde_t;

// Returns false at what we do not know.
static bool mi_prof_fde_read(const uint8_t* p, mi_prof_fde_t* fde) {
  mi_prof_cfi_t in = { p, p + 8 };
  const size_t size = mi_prof_cfi_bytes(&in, 4);
  const uint8_t* const distance_from = in.p;
  const size_t distance = mi_prof_cfi_bytes(&in, 4);
  in.end = distance_from + size;
  if (size == 0xFFFFFFFF || distance == 0) return false;
  // CIE: { length, 0, version, augmentation, alignments, return address register, [augmentation], instructions }
  mi_prof_cfi_t cie = { distance_from - distance, distance_from - distance + 4 };
  const size_t cie_size = mi_prof_cfi_bytes(&cie, 4);
  cie.end = cie.p + cie_size;
  if (cie_size == 0xFFFFFFFF || mi_prof_cfi_bytes(&cie, 4) != 0) return false;
  const size_t version = mi_prof_cfi_bytes(&cie, 1);
  const char* aug = (const char*)cie.p;
  while (cie.p < cie.end && *cie.p++ != 0) { }
  fde->code_align = mi_prof_cfi_uleb(&cie);
  fde->data_align = mi_prof_cfi_sleb(&cie);
  const size_t ra_reg = (version == 1 ? mi_prof_cfi_bytes(&cie, 1) : mi_prof_cfi_uleb(&cie));
  if ((version != 1 && version != 3) || ra_reg != MI_PROF_REG_RA) return false;
  fde->is_signal = false;
  size_t encoding = 0;
  const bool has_size = (aug[0] == 'z');
  if (has_size) {
    const size_t aug_size = mi_prof_cfi_uleb(&cie);
    mi_prof_cfi_t data = { cie.p, cie.p + aug_size };
    cie.p += aug_size;
    for (aug++; *aug != 0; aug++) {
      if (*aug == 'R') { encoding = mi_prof_cfi_bytes(&data, 1); }
      else if (*aug == 'L') { data.p++; }
      else if (*aug == 'P') { data.p += mi_prof_cfi_pointer_size(mi_prof_cfi_bytes(&data, 1)); }
      else if (*aug == 'S') { fde->is_signal = true; }
      else if (*aug != 'B') return false;
    }
  }
  else if (aug[0] != 0) return false;
  fde->initial = cie;
  in.p += mi_prof_cfi_pointer_size(encoding);
  fde->size = mi_prof_cfi_bytes(&in, mi_prof_cfi_pointer_size(encoding));
  if (has_size) {
    const size_t aug_size = mi_prof_cfi_uleb(&in);
    in.p += aug_size;
  }
  fde->cfi = in;
  return true;
}

#if MI_PROF_USE_UNWIND
static size_t mi_prof_function_size(const uint8_t* p) {
  mi_prof_fde_t fde;
  return (mi_prof_fde_read(p, &fde) ? fde.size : 0);
}
#endif

// Find the rules at `pc`. Returns false if there are none, or none that we know.
static mi_decl_noinline bool mi_prof_rules_find(const mi_prof_eh_t* eh, uintptr_t pc, mi_prof_rules_t* rules) {
  const size_t next = mi_prof_eh_above(eh, pc);
  if (next == 0) return false;
  const uintptr_t start = mi_prof_eh_start(eh, next - 1);
  mi_prof_fde_t fde;
  if (!mi_prof_fde_read((const uint8_t*)(eh->base + (uintptr_t)(intptr_t)eh->table[2*(next - 1) + 1]), &fde)) return false;
  if (pc - start >= fde.size) return false;    // between functions
  mi_prof_rules_t initial;
  _mi_memzero(&initial, sizeof(initial));
  if (!mi_prof_cfi_run(&fde.initial, fde.code_align, fde.data_align, 0, UINTPTR_MAX, &initial, &initial)) return false;
  initial.is_signal = fde.is_signal;
  *rules = initial;
  return mi_prof_cfi_run(&fde.cfi, fde.code_align, fde.data_align, start, pc, &initial, rules);
}


/* -----------------------------------------------------------
  A step by the rules. Those that were found are kept in a word each, by the return address; a word that does not match is
  computed again. No lock: where two threads write at once, what is read does not match.
----------------------------------------------------------- */

#define MI_PROF_RULES_MAX    (4096)
#define MI_PROF_OFFSET_BITS  (MI_INTPTR_SIZE == 8 ? 20 : 9)

static struct { _Atomic(uintptr_t) check; _Atomic(uintptr_t) rules; } mi_prof_rules[MI_PROF_RULES_MAX];   // `check` is the key xor the rules

static inline uintptr_t mi_prof_offset_pack(intptr_t offset) {
  return (uintptr_t)(offset / MI_INTPTR_SIZE) & (((uintptr_t)1 << MI_PROF_OFFSET_BITS) - 1);
}

static inline intptr_t mi_prof_offset_unpack(uintptr_t packed, unsigned shift) {
  const unsigned top = MI_INTPTR_BITS - MI_PROF_OFFSET_BITS;
  return ((intptr_t)((packed >> shift) << top) >> top) * MI_INTPTR_SIZE;    // with its sign
}

static inline mi_prof_rules_t mi_prof_rules_unpack(uintptr_t packed) {
  mi_prof_rules_t rules;
  rules.cfa.place  = (mi_prof_place_t)(packed & 3);
  rules.fp.place   = (mi_prof_place_t)((packed >> 2) & 3);
  rules.ra.place   = (rules.cfa.place == MI_PROF_NOWHERE ? MI_PROF_NOWHERE : MI_PROF_AT_CFA);
  rules.cfa.offset = mi_prof_offset_unpack(packed, 4);
  rules.fp.offset  = mi_prof_offset_unpack(packed, 4 + MI_PROF_OFFSET_BITS);
  rules.ra.offset  = mi_prof_offset_unpack(packed, 4 + 2*MI_PROF_OFFSET_BITS);
  rules.is_signal  = false;
  return rules;
}

// Returns 0 if they do not fit. (They would say that there is nothing on the stack.)
static uintptr_t mi_prof_rules_pack(const mi_prof_rules_t* rules) {
  if (rules->is_signal) return 0;
  const uintptr_t packed = (uintptr_t)rules->cfa.place | ((uintptr_t)rules->fp.place << 2) | (mi_prof_offset_pack(rules->cfa.offset) << 4) |
                           (mi_prof_offset_pack(rules->fp.offset) << (4 + MI_PROF_OFFSET_BITS)) | (mi_prof_offset_pack(rules->ra.offset) << (4 + 2*MI_PROF_OFFSET_BITS));
  const mi_prof_rules_t r = mi_prof_rules_unpack(packed);
  return (r.cfa.offset == rules->cfa.offset && r.fp.offset == rules->fp.offset && r.ra.offset == rules->ra.offset ? packed : 0);
}

// Compute the rules at `pc` in the form that is kept. Returns false if we do not know how to go on from there.
static bool mi_prof_rules_compute(const mi_prof_eh_t* eh, uintptr_t pc, mi_prof_rules_t* rules) {
  if (!mi_prof_rules_find(eh, pc, rules)) return false;
  if (rules->ra.place == MI_PROF_NOWHERE) { rules->cfa.place = MI_PROF_NOWHERE; return true; }
  if (rules->is_signal) return (rules->ra.place == MI_PROF_AT_SP && rules->fp.place == MI_PROF_AT_SP && rules->cfa.place == MI_PROF_AT_SP);
  if (rules->fp.place > MI_PROF_NOWHERE) { rules->fp.place = MI_PROF_NOWHERE; }
  return (rules->ra.place == MI_PROF_AT_CFA && rules->cfa.place < MI_PROF_NOWHERE);
}

// From a signal handler on to what it interrupted, which may be on another stack.
static mi_decl_noinline mi_prof_step_t mi_prof_step_signal(mi_prof_cursor_t* cursor, const mi_prof_rules_t* rules) {
  uintptr_t values[3];
  const intptr_t offsets[3] = { rules->cfa.offset, rules->fp.offset, rules->ra.offset };
  for (size_t i = 0; i < 3; i++) {
    const uintptr_t p = cursor->sp + (uintptr_t)offsets[i];
    if (!mi_prof_cursor_check(cursor, p, sizeof(uintptr_t))) return MI_PROF_STEP_UNKNOWN;
    values[i] = mi_prof_load(p);
  }
  if (cursor->signals++ >= 4) return MI_PROF_STEP_UNKNOWN;    // do not go around in circles
  cursor->sp = values[0];
  cursor->fp = values[1];
  cursor->pc = values[2] + 1;     // not after a call
  mi_prof_cursor_set_bounds(cursor, false);
  return MI_PROF_STEP_OK;
}

static mi_prof_step_t mi_prof_step_cfi(mi_prof_cursor_t* cursor) {
  const uintptr_t pc = cursor->pc - 1;    // in the call
  if (!mi_prof_range_has(&cursor->eh.text, pc) && !mi_prof_eh_find(pc, &cursor->eh)) {
    cursor->eh.text.end = 0;
    return MI_PROF_STEP_UNKNOWN;
  }
  const uintptr_t key = pc ^ cursor->eh.tag;
  const size_t i = (size_t)((key * (uintptr_t)UINT64_C(0x9E3779B97F4A7C15)) >> (MI_INTPTR_BITS - 12)) % MI_PROF_RULES_MAX;
  const uintptr_t packed = mi_atomic_load_relaxed(&mi_prof_rules[i].rules);
  mi_prof_rules_t rules;
  if mi_likely(packed != 0 && (mi_atomic_load_relaxed(&mi_prof_rules[i].check) ^ packed) == key) {
    rules = mi_prof_rules_unpack(packed);
  }
  else {
    if (!mi_prof_rules_compute(&cursor->eh, pc, &rules)) return MI_PROF_STEP_UNKNOWN;
    const uintptr_t repacked = mi_prof_rules_pack(&rules);
    if (repacked != 0) {
      mi_atomic_store_relaxed(&mi_prof_rules[i].check, key ^ repacked);
      mi_atomic_store_relaxed(&mi_prof_rules[i].rules, repacked);
    }
  }
  if (rules.cfa.place == MI_PROF_NOWHERE) return MI_PROF_STEP_END;
  if mi_unlikely(rules.is_signal) return mi_prof_step_signal(cursor, &rules);

  uintptr_t cfa = (rules.cfa.place == MI_PROF_SAME ? cursor->sp : cursor->fp) + (uintptr_t)rules.cfa.offset;
  if mi_unlikely(rules.cfa.place == MI_PROF_AT_FP) {
    if (!mi_prof_cursor_check(cursor, cfa, sizeof(uintptr_t))) return MI_PROF_STEP_UNKNOWN;
    cfa = mi_prof_load(cfa);
  }
  const uintptr_t ra = cfa + (uintptr_t)rules.ra.offset;    // where they are saved
  const uintptr_t fp = (rules.fp.place == MI_PROF_AT_FP ? cursor->fp : cfa) + (uintptr_t)rules.fp.offset;
  if (cfa <= cursor->sp || !mi_prof_cursor_check(cursor, ra, sizeof(uintptr_t))) return MI_PROF_STEP_UNKNOWN;
  if (rules.fp.place == MI_PROF_NOWHERE) {
    cursor->fp = 0;
  }
  else if (rules.fp.place != MI_PROF_SAME) {
    if (!mi_prof_cursor_check(cursor, fp, sizeof(uintptr_t))) return MI_PROF_STEP_UNKNOWN;
    cursor->fp = mi_prof_load(fp);
  }
  cursor->pc = mi_prof_strip(mi_prof_load(ra));
  cursor->sp = cfa;
  return MI_PROF_STEP_OK;
}

#endif


/* -----------------------------------------------------------
  The walk
----------------------------------------------------------- */

static void mi_prof_walk_init(void) {
  mi_prof_bounds_init();
  #if MI_PROF_USE_CFI
  mi_prof_tables_refresh();
  #endif
}

// Returns false if it did not get to the end.
static mi_decl_noinline bool mi_prof_walk_frames(mi_prof_unwind_t how, mi_prof_walk_t* walk) {
  mi_prof_cursor_t cursor;
  #if MI_PROF_USE_CFI && defined(__x86_64__)
  __asm__ volatile ("mov %%rbp,%2\n\tmov %%rsp,%1\n\tlea 0(%%rip),%0" : "=r" (cursor.pc), "=r" (cursor.sp), "=r" (cursor.fp));
  #elif MI_PROF_USE_CFI && defined(__i386__)
  __asm__ volatile ("mov %%ebp,%2\n\tmov %%esp,%1\n\tcall 1f\n1:\tpop %0" : "=r" (cursor.pc), "=r" (cursor.sp), "=r" (cursor.fp));
  #elif MI_PROF_USE_CFI && defined(__aarch64__)
  __asm__ volatile ("mov %2,x29\n\tmov %1,sp\n\tadr %0,.+4" : "=r" (cursor.pc), "=r" (cursor.sp), "=r" (cursor.fp));
  #elif MI_PROF_USE_CFI && defined(__riscv)
  __asm__ volatile ("mv %2,s0\n\tmv %1,sp\n\tauipc %0,0\n\taddi %0,%0,4" : "=r" (cursor.pc), "=r" (cursor.sp), "=r" (cursor.fp));
  #else
  cursor.pc = 0;
  cursor.fp = (uintptr_t)__builtin_frame_address(0);
  cursor.sp = cursor.fp - 2*sizeof(uintptr_t);
  #endif
  cursor.signals = 0;
  #if MI_PROF_USE_CFI
  cursor.eh.text.start = cursor.eh.text.end = 0;
  #endif
  const bool fp_only  = (how == MI_PROF_UNWIND_FP);
  const bool fp_too   = (fp_only || (how == MI_PROF_UNWIND_AUTO && !MI_PROF_USE_UNWIND));   // otherwise `_Unwind_Backtrace` comes next
  const bool is_known = mi_prof_cursor_set_bounds(&cursor, fp_too);
  bool is_own = true;   // or may be: these frames are not searched by frame pointers alone
  bool more = true;
  while (more) {
    is_own = (walk->gap < MI_PROF_OWN_GAP);
    if (fp_only && !is_own) break;
    mi_prof_step_t step = MI_PROF_STEP_UNKNOWN;
    #if MI_PROF_USE_CFI
    step = mi_prof_step_cfi(&cursor);
    #endif
    if (step == MI_PROF_STEP_END) break;
    if (step == MI_PROF_STEP_UNKNOWN) {
      const bool may_guess = (is_own ? !MI_PROF_USE_UNWIND : fp_too && is_known);
      if (!may_guess || !mi_prof_step_fp(&cursor)) {
        // libgcc looks at the code there, which is gone if the library was unloaded
        if (mi_prof_is_readable(cursor.pc, 16)) return false;
        break;
      }
    }
    more = (cursor.pc >= 4096 && mi_prof_walk_push(walk, cursor.pc));
  }
  if (fp_only) {
    if (!is_known) { walk->count = (walk->count > 0 ? 1 : 0); }    // what the frame pointer leads to is anybody's guess
    else if (more && !is_own) {
      while (walk->count < walk->max && mi_prof_step_fp(&cursor) && cursor.pc >= 4096) { walk->frames[walk->count++] = cursor.pc; }
    }
  }
  return true;
}
