// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.

// This file is included in `src/profile-prim.c`

#if !defined(MI_IN_PROFILE_C)
#error "this file should be included from 'profile-prim.c' (as it is a part of that)"
#endif

// The frames of our own module are unwound by its unwind tables where we know how (see `mi_prof_step_cfi`), as the code is usually
// compiled without frame pointers. All others are taken to have them.
//
// But a frame pointer may legally hold anything (in code compiled without them it is just a register). So every step must go up the
// stack, aligned, and by no more than a large frame; stay below the end of the stack; and read only readable memory.

#define MI_PROF_FRAME_SIZE_MAX   (MI_MiB)
#define MI_PROF_STACK_SIZE_MAX   (64*MI_MiB)

typedef struct mi_prof_cursor_s {
  uintptr_t pc;
  uintptr_t sp;
  uintptr_t fp;
  uintptr_t end;              // of the stack
  uintptr_t readable_start;   // stack that is known to be readable
  uintptr_t readable_end;
} mi_prof_cursor_t;

#if defined(__APPLE__)

// The end of the stack that `sp` is on. This reads the thread's descriptor only.
static uintptr_t mi_prof_stack_end(uintptr_t sp) {
  const pthread_t self = pthread_self();
  const uintptr_t end  = (uintptr_t)pthread_get_stackaddr_np(self);
  return (sp < end && end - sp <= pthread_get_stacksize_np(self) ? end : 0);
}

static inline bool mi_prof_is_readable(uintptr_t p) {
  MI_UNUSED(p); return true;    // the whole stack is
}

#else

// The stack bounds of a thread cannot be had without allocating or reading the whole memory map. But a thread has its thread-local data
// at the end of its stack, and the main thread has the random bytes of the kernel there. On another stack (of a coroutine, say)
// the end is not known, and it is the readable memory that limits the walk.
static uintptr_t mi_prof_stack_end(uintptr_t sp) {
  uintptr_t end = (sp < UINTPTR_MAX - MI_PROF_STACK_SIZE_MAX ? sp + MI_PROF_STACK_SIZE_MAX : UINTPTR_MAX);
  const uintptr_t tls = (uintptr_t)_mi_prim_thread_id();
  if (sp < tls && tls < end) { end = tls; }
  #if defined(__linux__)
  const uintptr_t args = (uintptr_t)getauxval(AT_RANDOM);
  if (sp < args && args < end) { end = args; }
  #endif
  return end;
}

// Let the kernel read 8 bytes: an invalid argument is only found out after that.
static bool mi_prof_is_readable(uintptr_t p) {
  #if defined(__linux__)
  return (syscall(SYS_rt_sigprocmask, ~0, p & ~(uintptr_t)7, NULL, 8) != 0 && errno == EINVAL);
  #else
  return (syscall(SYS_sigprocmask, ~0, p & ~(uintptr_t)7, NULL) != 0 && errno == EINVAL);
  #endif
}

#endif

static mi_decl_noinline bool mi_prof_cursor_probe(mi_prof_cursor_t* cursor, uintptr_t p, size_t size) {
  const uintptr_t page  = 4096;    // all page sizes are a multiple
  const uintptr_t start = p & ~(page - 1);
  const uintptr_t end   = ((p + size - 1) & ~(page - 1)) + page;
  for (uintptr_t q = start; q < end; q += page) {
    if (!mi_prof_is_readable(q)) return false;
  }
  if (start != cursor->readable_end) { cursor->readable_start = start; }
  cursor->readable_end = end;
  return true;
}

// Can this part of the stack be read safely?
static inline bool mi_prof_cursor_check(mi_prof_cursor_t* cursor, uintptr_t p, size_t size) {
  if (p % sizeof(uintptr_t) != 0 || p < cursor->sp || p - cursor->sp > MI_PROF_FRAME_SIZE_MAX) return false;
  if (p >= cursor->end || cursor->end - p < size) return false;
  if mi_likely(p >= cursor->readable_start && p + size <= cursor->readable_end) return true;
  return mi_prof_cursor_probe(cursor, p, size);
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

// A frame pointer points to the frame pointer of the caller, followed by the return address.
static bool mi_prof_step_fp(mi_prof_cursor_t* cursor) {
  #if defined(__riscv)
  const uintptr_t p = cursor->fp - 2*sizeof(uintptr_t);    // these are below it
  #else
  const uintptr_t p = cursor->fp;
  #endif
  if (!mi_prof_cursor_check(cursor, p, 2*sizeof(uintptr_t))) return false;
  cursor->fp = ((const uintptr_t*)p)[0];
  cursor->pc = mi_prof_strip(((const uintptr_t*)p)[1]);
  cursor->sp = p + 2*sizeof(uintptr_t);
  return true;
}

#if MI_PROF_USE_CFI

#if defined(__x86_64__)
enum { MI_PROF_REG_FP = 6,  MI_PROF_REG_SP = 7,  MI_PROF_REG_RA = 16 };
#elif defined(__aarch64__)
enum { MI_PROF_REG_FP = 29, MI_PROF_REG_SP = 31, MI_PROF_REG_RA = 30 };
#endif

// How to restore the registers of the caller, as far as we need it.
typedef struct mi_prof_rules_s {
  size_t   cfa_reg;       // the caller's stack pointer (CFA) is this register plus the offset
  intptr_t cfa_offset;
  bool     has_fp;        // saved at an offset from the CFA? otherwise it is unchanged
  bool     has_ra;
  intptr_t fp_offset;
  intptr_t ra_offset;
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

static inline void mi_prof_rules_set(mi_prof_rules_t* rules, size_t reg, bool saved, intptr_t offset) {
  if (reg == MI_PROF_REG_FP) { rules->has_fp = saved; rules->fp_offset = offset; }
  if (reg == MI_PROF_REG_RA) { rules->has_ra = saved; rules->ra_offset = offset; }
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
      case 0x40: loc += low*code_align; continue;                                                               // advance_loc
      case 0x80: mi_prof_rules_set(rules, low, true, (intptr_t)mi_prof_cfi_uleb(in)*data_align); continue;      // offset
      case 0xC0:                                                                                                // restore
        if (low == MI_PROF_REG_FP) { rules->has_fp = initial->has_fp; rules->fp_offset = initial->fp_offset; }
        if (low == MI_PROF_REG_RA) { rules->has_ra = initial->has_ra; rules->ra_offset = initial->ra_offset; }
        continue;
      default: break;
    }
    switch (op) {
      case 0x00: break;                                                                                         // nop
      case 0x02: loc += mi_prof_cfi_bytes(in,1)*code_align; break;                                              // advance_loc1, 2, 4
      case 0x03: loc += mi_prof_cfi_bytes(in,2)*code_align; break;
      case 0x04: loc += mi_prof_cfi_bytes(in,4)*code_align; break;
      case 0x05: reg = mi_prof_cfi_uleb(in); mi_prof_rules_set(rules, reg, true, (intptr_t)mi_prof_cfi_uleb(in)*data_align); break;   // offset_extended
      case 0x11: reg = mi_prof_cfi_uleb(in); mi_prof_rules_set(rules, reg, true, mi_prof_cfi_sleb(in)*data_align); break;             // offset_extended_sf
      case 0x07:                                                                                                // undefined: the outermost frame
        if (mi_prof_cfi_uleb(in) == MI_PROF_REG_RA) return false;
        break;
      case 0x08: mi_prof_rules_set(rules, mi_prof_cfi_uleb(in), false, 0); break;                               // same_value
      case 0x0A:                                                                                                // remember_state
        if (depth >= sizeof(saved)/sizeof(saved[0])) return false;
        saved[depth++] = *rules;
        break;
      case 0x0B:                                                                                                // restore_state
        if (depth == 0) return false;
        *rules = saved[--depth];
        break;
      case 0x0C: rules->cfa_reg = mi_prof_cfi_uleb(in); rules->cfa_offset = (intptr_t)mi_prof_cfi_uleb(in); break;            // def_cfa
      case 0x12: rules->cfa_reg = mi_prof_cfi_uleb(in); rules->cfa_offset = mi_prof_cfi_sleb(in)*data_align; break;           // def_cfa_sf
      case 0x0D: rules->cfa_reg = mi_prof_cfi_uleb(in); break;                                                                // def_cfa_register
      case 0x0E: rules->cfa_offset = (intptr_t)mi_prof_cfi_uleb(in); break;                                                   // def_cfa_offset
      case 0x13: rules->cfa_offset = mi_prof_cfi_sleb(in)*data_align; break;                                                  // def_cfa_offset_sf
      case 0x2D: break;                                                                                         // AARCH64_negate_ra_state
      case 0x2E: (void)mi_prof_cfi_uleb(in); break;                                                             // GNU_args_size
      default:   return false;    // expressions
    }
  }
  return true;
}

// Unwind a frame of our own module by its `.eh_frame`, which needs no lock as the module of running code stays.
static bool mi_prof_step_cfi(const mi_prof_eh_t* eh, mi_prof_cursor_t* cursor) {
  const uintptr_t pc = cursor->pc - 1;    // in the call
  uintptr_t start;
  const uint8_t* p = mi_prof_elf_fde(eh, pc, &start);
  if (p == NULL) return false;
  // FDE: { length, distance to its CIE, start of the function, its size, [augmentation], instructions }
  mi_prof_cfi_t fde = { p, p + 8 };
  const size_t fde_size = mi_prof_cfi_bytes(&fde, 4);
  const uint8_t* const cie_base = fde.p;
  p = cie_base - mi_prof_cfi_bytes(&fde, 4);
  if (fde_size == 0xFFFFFFFF) return false;
  fde.end = cie_base + fde_size;
  // CIE: { length, 0, version, augmentation, alignments, return address register, [augmentation], instructions }
  mi_prof_cfi_t cie = { p, p + 4 };
  const size_t cie_size = mi_prof_cfi_bytes(&cie, 4);
  cie.end = cie.p + cie_size;
  if (cie_size == 0xFFFFFFFF || mi_prof_cfi_bytes(&cie, 4) != 0) return false;
  const size_t version = mi_prof_cfi_bytes(&cie, 1);
  const char* aug = (const char*)cie.p;
  while (cie.p < cie.end && *cie.p++ != 0) { }
  const size_t   code_align = mi_prof_cfi_uleb(&cie);
  const intptr_t data_align = mi_prof_cfi_sleb(&cie);
  const size_t   ra_reg = (version == 1 ? mi_prof_cfi_bytes(&cie, 1) : mi_prof_cfi_uleb(&cie));
  if ((version != 1 && version != 3) || ra_reg != MI_PROF_REG_RA) return false;
  size_t encoding = 0;
  if (aug[0] == 'z') {
    const size_t aug_size = mi_prof_cfi_uleb(&cie);
    mi_prof_cfi_t in = { cie.p, cie.p + aug_size };
    cie.p += aug_size;
    for (aug++; *aug != 0; aug++) {
      if (*aug == 'R') { encoding = mi_prof_cfi_bytes(&in, 1); }
      else if (*aug == 'L') { in.p++; }
      else if (*aug == 'P') { in.p += mi_prof_cfi_pointer_size(mi_prof_cfi_bytes(&in, 1)); }
      else if (*aug != 'B') return false;     // a signal frame ('S'), or unknown
    }
    fde.p += 2*mi_prof_cfi_pointer_size(encoding);
    const size_t fde_aug_size = mi_prof_cfi_uleb(&fde);
    fde.p += fde_aug_size;
  }
  else if (aug[0] == 0) { fde.p += 2*sizeof(void*); }
  else return false;

  mi_prof_rules_t initial = { 0, 0, false, false, 0, 0 };
  if (!mi_prof_cfi_run(&cie, code_align, data_align, 0, UINTPTR_MAX, &initial, &initial)) return false;
  mi_prof_rules_t rules = initial;
  if (!mi_prof_cfi_run(&fde, code_align, data_align, start, pc, &initial, &rules)) return false;

  if (!rules.has_ra || (rules.cfa_reg != MI_PROF_REG_SP && rules.cfa_reg != MI_PROF_REG_FP)) return false;
  const uintptr_t cfa = (rules.cfa_reg == MI_PROF_REG_SP ? cursor->sp : cursor->fp) + (uintptr_t)rules.cfa_offset;
  const uintptr_t ra = cfa + (uintptr_t)rules.ra_offset;    // where they are saved
  const uintptr_t fp = cfa + (uintptr_t)rules.fp_offset;
  if (cfa <= cursor->sp || !mi_prof_cursor_check(cursor, ra, sizeof(uintptr_t))) return false;
  if (rules.has_fp) {
    if (!mi_prof_cursor_check(cursor, fp, sizeof(uintptr_t))) return false;
    cursor->fp = *(const uintptr_t*)fp;
  }
  cursor->pc = mi_prof_strip(*(const uintptr_t*)ra);
  cursor->sp = cfa;
  return true;
}

#endif

static mi_decl_noinline void mi_prof_walk_stack(mi_prof_walk_t* walk) {
  mi_prof_cursor_t cursor;
  #if MI_PROF_USE_CFI && defined(__x86_64__)
  __asm__ volatile ("mov %%rbp,%2\n\tmov %%rsp,%1\n\tlea 0(%%rip),%0" : "=r" (cursor.pc), "=r" (cursor.sp), "=r" (cursor.fp));
  #elif MI_PROF_USE_CFI && defined(__aarch64__)
  __asm__ volatile ("mov %2,x29\n\tmov %1,sp\n\tadr %0,.+4" : "=r" (cursor.pc), "=r" (cursor.sp), "=r" (cursor.fp));
  #else
  cursor.pc = 0;
  cursor.fp = (uintptr_t)__builtin_frame_address(0);
  cursor.sp = cursor.fp - 2*sizeof(uintptr_t);
  #endif
  cursor.end = mi_prof_stack_end(cursor.sp);
  cursor.readable_start = cursor.readable_end = 0;
  #if MI_PROF_USE_CFI
  mi_prof_eh_t eh;
  const bool has_eh = mi_prof_elf_eh(&eh);
  #endif
  while (true) {
    #if MI_PROF_USE_CFI
    if (!(has_eh && mi_prof_step_cfi(&eh, &cursor)) && !mi_prof_step_fp(&cursor)) return;
    #else
    if (!mi_prof_step_fp(&cursor)) return;
    #endif
    if (cursor.pc < 4096 || !mi_prof_walk_push(walk, cursor.pc)) return;
  }
}
