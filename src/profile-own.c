// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.

// This file is included in `src/profile-prim.c`

#if !defined(MI_IN_PROFILE_C)
#error "this file should be included from 'profile-prim.c' (as it is a part of that)"
#endif

/* -----------------------------------------------------------
  Our own code. A frame is left out of a stack by its address: inlining and link time optimization
  change how many frames there are.

  A shared library is one range. In a static library it is the ranges of the functions through which
  a program enters the allocator, with the functions between those and a sample left out along with them.
  Where a program's function has inlined an entry, its frame is not in a range and stays.
----------------------------------------------------------- */

typedef struct mi_prof_range_s {
  uintptr_t start;
  uintptr_t end;
} mi_prof_range_t;

static inline bool mi_prof_range_has(const mi_prof_range_t* range, uintptr_t p) {
  return (range->start <= p && p < range->end);
}

#if defined(MI_SHARED_LIB_EXPORT)

#define MI_PROF_OWN_MAX   (1)
#define MI_PROF_OWN_GAP   (1)       // the first frame outside is the program's

#else

#define MI_PROF_OWN_GAP   (8)       // at most this many frames from one entry to the next: internal functions that are in no range

typedef void (mi_prof_fun_t)(void);
#define MI_PROF_FUN(name)   ((mi_prof_fun_t*)(&name))

#if defined(MI_MALLOC_OVERRIDE) && defined(__linux__) && !MI_TRACK_ENABLED
  // The overrides that are functions of their own; the others are aliases and have the address of an entry. Named by
  // their symbols, as their declarations differ between libraries and languages.
  #define MI_PROF_OVERRIDES  1
  mi_prof_decl_extern void mi_prof_override_posix_memalign(void) __asm__("posix_memalign");
  mi_prof_decl_extern void mi_prof_override_memalign(void)       __asm__("memalign");
  mi_prof_decl_extern void mi_prof_override_aligned_alloc(void)  __asm__("aligned_alloc");
  #if (MI_INTPTR_SIZE == 8)
  mi_prof_decl_extern void mi_prof_override_new_nothrow(void)    __asm__("_ZnwmRKSt9nothrow_t");
  mi_prof_decl_extern void mi_prof_override_new_n_nothrow(void)  __asm__("_ZnamRKSt9nothrow_t");
  #else
  mi_prof_decl_extern void mi_prof_override_new_nothrow(void)    __asm__("_ZnwjRKSt9nothrow_t");
  mi_prof_decl_extern void mi_prof_override_new_n_nothrow(void)  __asm__("_ZnajRKSt9nothrow_t");
  #endif
#endif

#if !defined(__cplusplus)
mi_prof_decl_extern void* mi_heap_umalloc(mi_heap_t* heap, size_t size, size_t* usable);    // no header has it
#endif

static mi_prof_fun_t* const mi_prof_entries[] = {
  MI_PROF_FUN(mi_malloc), MI_PROF_FUN(mi_calloc), MI_PROF_FUN(mi_realloc), MI_PROF_FUN(mi_zalloc),
  MI_PROF_FUN(mi_malloc_small), MI_PROF_FUN(mi_zalloc_small), MI_PROF_FUN(mi_mallocn), MI_PROF_FUN(mi_reallocn), MI_PROF_FUN(mi_reallocf),
  MI_PROF_FUN(mi_rezalloc), MI_PROF_FUN(mi_recalloc), MI_PROF_FUN(mi_strdup), MI_PROF_FUN(mi_strndup),
  #if !defined(__wasi__)
  MI_PROF_FUN(mi_realpath), MI_PROF_FUN(mi_heap_realpath),
  #endif

  MI_PROF_FUN(mi_malloc_aligned), MI_PROF_FUN(mi_malloc_aligned_at), MI_PROF_FUN(mi_zalloc_aligned), MI_PROF_FUN(mi_zalloc_aligned_at),
  MI_PROF_FUN(mi_calloc_aligned), MI_PROF_FUN(mi_calloc_aligned_at), MI_PROF_FUN(mi_realloc_aligned), MI_PROF_FUN(mi_realloc_aligned_at),
  MI_PROF_FUN(mi_rezalloc_aligned), MI_PROF_FUN(mi_rezalloc_aligned_at), MI_PROF_FUN(mi_recalloc_aligned), MI_PROF_FUN(mi_recalloc_aligned_at),

  MI_PROF_FUN(mi_umalloc), MI_PROF_FUN(mi_ucalloc), MI_PROF_FUN(mi_urealloc), MI_PROF_FUN(mi_umalloc_small),
  MI_PROF_FUN(mi_umalloc_aligned), MI_PROF_FUN(mi_uzalloc_aligned),
  #if (MI_MALLOC_VERSION >= 20500)
  MI_PROF_FUN(mi_uzalloc_small),
  #endif

  MI_PROF_FUN(mi_heap_malloc), MI_PROF_FUN(mi_heap_zalloc), MI_PROF_FUN(mi_heap_mallocn), MI_PROF_FUN(mi_heap_malloc_small),
  #if !defined(__cplusplus)   // only inline in C++
  MI_PROF_FUN(mi_heap_calloc), MI_PROF_FUN(mi_heap_zalloc_small), MI_PROF_FUN(mi_heap_umalloc),
  #endif
  MI_PROF_FUN(mi_heap_realloc), MI_PROF_FUN(mi_heap_reallocn),
  MI_PROF_FUN(mi_heap_reallocf), MI_PROF_FUN(mi_heap_rezalloc), MI_PROF_FUN(mi_heap_recalloc), MI_PROF_FUN(mi_heap_strdup), MI_PROF_FUN(mi_heap_strndup),
  MI_PROF_FUN(mi_heap_malloc_aligned), MI_PROF_FUN(mi_heap_malloc_aligned_at), MI_PROF_FUN(mi_heap_zalloc_aligned), MI_PROF_FUN(mi_heap_zalloc_aligned_at),
  MI_PROF_FUN(mi_heap_calloc_aligned), MI_PROF_FUN(mi_heap_calloc_aligned_at), MI_PROF_FUN(mi_heap_realloc_aligned), MI_PROF_FUN(mi_heap_realloc_aligned_at),
  MI_PROF_FUN(mi_heap_rezalloc_aligned), MI_PROF_FUN(mi_heap_rezalloc_aligned_at), MI_PROF_FUN(mi_heap_recalloc_aligned), MI_PROF_FUN(mi_heap_recalloc_aligned_at),

  MI_PROF_FUN(mi_posix_memalign), MI_PROF_FUN(mi_memalign), MI_PROF_FUN(mi_valloc), MI_PROF_FUN(mi_pvalloc), MI_PROF_FUN(mi_aligned_alloc),
  MI_PROF_FUN(mi_reallocarray), MI_PROF_FUN(mi_reallocarr), MI_PROF_FUN(mi_aligned_recalloc), MI_PROF_FUN(mi_aligned_offset_recalloc),
  MI_PROF_FUN(mi_wcsdup), MI_PROF_FUN(mi_mbsdup), MI_PROF_FUN(mi_dupenv_s), MI_PROF_FUN(mi_wdupenv_s),

  MI_PROF_FUN(mi_new), MI_PROF_FUN(mi_new_n), MI_PROF_FUN(mi_new_nothrow), MI_PROF_FUN(mi_new_aligned), MI_PROF_FUN(mi_new_aligned_nothrow),
  MI_PROF_FUN(mi_new_realloc), MI_PROF_FUN(mi_new_reallocn), MI_PROF_FUN(mi_heap_alloc_new), MI_PROF_FUN(mi_heap_alloc_new_n),

  #if MI_PROF_OVERRIDES
  MI_PROF_FUN(mi_prof_override_posix_memalign), MI_PROF_FUN(mi_prof_override_memalign), MI_PROF_FUN(mi_prof_override_aligned_alloc),
  MI_PROF_FUN(mi_prof_override_new_nothrow), MI_PROF_FUN(mi_prof_override_new_n_nothrow),
  #endif

  // where an entry is inlined in a program's function, these are the outermost frames of ours.
  MI_PROF_FUN(_mi_malloc_generic), MI_PROF_FUN(_mi_page_malloc_zero), MI_PROF_FUN(_mi_page_malloc), MI_PROF_FUN(_mi_page_malloc_zeroed),
  MI_PROF_FUN(_mi_heap_malloc_zero), MI_PROF_FUN(_mi_heap_malloc_zero_ex), MI_PROF_FUN(_mi_heap_realloc_zero),
  #if MI_GUARDED
  MI_PROF_FUN(_mi_heap_malloc_guarded),
  #endif
  MI_PROF_FUN(_mi_prof_prim_backtrace)
};

#define MI_PROF_OWN_MAX   (sizeof(mi_prof_entries)/sizeof(mi_prof_entries[0]) + MI_PROF_ALIGNED_FUNCTIONS)

#endif

// Written once, before `mi_prof_own_count` is; sorted and disjoint.
static mi_prof_range_t    mi_prof_own[MI_PROF_OWN_MAX];
static _Atomic(uintptr_t) mi_prof_own_count;   // = 0
static _Atomic(uintptr_t) mi_prof_own_init;    // = 0, 1 once a thread sets it up

// Is this return address in our own code? (A call that does not return may be the last instruction of its function.)
static bool mi_prof_is_own(uintptr_t pc) {
  pc--;
  size_t lo = 0;
  size_t hi = mi_atomic_load_acquire(&mi_prof_own_count);
  if (hi == 0 || pc < mi_prof_own[0].start || pc >= mi_prof_own[hi-1].end) return false;
  while (hi - lo > 1) {
    const size_t mid = lo + (hi - lo)/2;
    if (pc < mi_prof_own[mid].start) { hi = mid; } else { lo = mid; }
  }
  return (pc < mi_prof_own[lo].end);
}

/* -----------------------------------------------------------
  Per object format:
  - `mi_prof_image_range`: the code of the module that we are in. Without the loader's lock.
  - `mi_prof_set_ends`: the end of each function, given their starts in ascending order. It stays 0 if not known.
----------------------------------------------------------- */

#if defined(_WIN32)

mi_prof_decl_extern IMAGE_DOS_HEADER __ImageBase;   // of the module this is linked in

static inline bool mi_prof_image_range(mi_prof_range_t* range) {
  const uintptr_t base = (uintptr_t)&__ImageBase;
  const IMAGE_NT_HEADERS* const nt = (const IMAGE_NT_HEADERS*)(base + (uintptr_t)__ImageBase.e_lfanew);
  range->start = base;
  range->end   = base + nt->OptionalHeader.SizeOfImage;
  return true;
}

static inline void mi_prof_set_ends(mi_prof_range_t* ranges, size_t count) {
  #if defined(_M_X64) || defined(_M_ARM64) || defined(__x86_64__) || defined(__aarch64__)
  for (size_t i = 0; i < count; i++) {
    ULONG_PTR base = 0;
    const RUNTIME_FUNCTION* fun = RtlLookupFunctionEntry(ranges[i].start, &base, NULL);
    if (fun == NULL || base + fun->BeginAddress != ranges[i].start) continue;
    #if defined(_M_ARM64) || defined(__aarch64__)
    // the length is in the packed unwind data, or in the first word of the unwind record; in units of 4 bytes
    const uint32_t packed = fun->UnwindData;
    const uint32_t words  = ((packed & 3) != 0 ? (packed >> 2) & 0x7FF : *(const uint32_t*)(base + packed) & 0x3FFFF);
    ranges[i].end = ranges[i].start + 4*(uintptr_t)words;
    #else
    // a function may go on in chained entries
    uintptr_t end = base + fun->EndAddress;
    for (int j = 0; j < 16; j++) {
      fun = RtlLookupFunctionEntry(end, &base, NULL);
      if (fun == NULL || base + fun->BeginAddress != end) break;
      const uint8_t flags = *(const uint8_t*)(base + fun->UnwindData) >> 3;   // UNWIND_INFO: { version:3, flags:5 }
      if ((flags & 0x04 /* UNW_FLAG_CHAININFO */) == 0) break;
      end = base + fun->EndAddress;
    }
    ranges[i].end = end;
    #endif
  }
  #else
  MI_UNUSED(ranges); MI_UNUSED(count);   // no function table on 32-bit x86
  #endif
}

#elif MI_PROF_USE_ELF

// Defined by the linker in each module; the attributes keep it our own module's.
mi_prof_decl_extern const MI_PROF_ELF(Ehdr) __ehdr_start __attribute__((weak, visibility("hidden")));

// Find the header of our module, and the address of offset 0 of its addresses.
static const MI_PROF_ELF(Ehdr)* mi_prof_elf_self(uintptr_t* bias) {
  const MI_PROF_ELF(Ehdr)* const ehdr = &__ehdr_start;
  if (ehdr == NULL || ehdr->e_phentsize != sizeof(MI_PROF_ELF(Phdr))) return NULL;
  const MI_PROF_ELF(Phdr)* const phdr = (const MI_PROF_ELF(Phdr)*)((uintptr_t)ehdr + (uintptr_t)ehdr->e_phoff);
  for (size_t i = 0; i < ehdr->e_phnum; i++) {
    if (phdr[i].p_type == PT_LOAD && phdr[i].p_offset == 0) {
      *bias = (uintptr_t)ehdr - (uintptr_t)phdr[i].p_vaddr;
      return ehdr;
    }
  }
  return NULL;
}

// Find a segment of our module; the union of them if there are more.
static bool mi_prof_elf_segment(uint32_t type, uint32_t flags, mi_prof_range_t* range) {
  uintptr_t bias = 0;
  const MI_PROF_ELF(Ehdr)* const ehdr = mi_prof_elf_self(&bias);
  range->start = range->end = 0;
  if (ehdr == NULL) return false;
  const MI_PROF_ELF(Phdr)* const phdr = (const MI_PROF_ELF(Phdr)*)((uintptr_t)ehdr + (uintptr_t)ehdr->e_phoff);
  for (size_t i = 0; i < ehdr->e_phnum; i++) {
    if (phdr[i].p_type != type || (phdr[i].p_flags & flags) != flags || phdr[i].p_memsz == 0) continue;
    const uintptr_t start = bias + (uintptr_t)phdr[i].p_vaddr;
    const uintptr_t end   = start + (uintptr_t)phdr[i].p_memsz;
    if (range->end == 0 || start < range->start) { range->start = start; }
    if (end > range->end) { range->end = end; }
  }
  return (range->end != 0);
}

static inline bool mi_prof_image_range(mi_prof_range_t* range) {
  return mi_prof_elf_segment(PT_LOAD, PF_X, range);
}

// The `.eh_frame_hdr` of a module holds the start of every function, sorted, and where its unwind information (FDE) is.
typedef struct mi_prof_eh_s {
  mi_prof_range_t text;
  uintptr_t       base;
  size_t          count;
  const int32_t*  table;   // pairs, relative to the base
  uintptr_t       tag;     // tells this table from another one that is at this address later
} mi_prof_eh_t;

// All but the text, from the header at `base`, which is readable. Returns false if it is not as all linkers make it.
static bool mi_prof_eh_init(mi_prof_eh_t* eh, uintptr_t base) {
  const uint8_t*  const hdr = (const uint8_t*)base;
  const uint32_t* const words = (const uint32_t*)base;
  if (hdr[0] != 1 /* version */ || (hdr[1] & 0x0F) != 0x0B /* sdata4 */ || hdr[2] != 0x03 /* udata4 */ || hdr[3] != 0x3B /* datarel sdata4 */) return false;
  eh->base  = base;
  eh->count = words[2];
  eh->table = (const int32_t*)(base + 12);
  eh->tag   = base ^ ((uintptr_t)words[1] << (MI_INTPTR_BITS/2)) ^ ((uintptr_t)words[2] << (MI_INTPTR_BITS/4));
  return true;
}

static bool mi_prof_elf_eh(mi_prof_eh_t* eh) {
  mi_prof_range_t range;
  if (!mi_prof_elf_segment(PT_LOAD, PF_X, &eh->text) || !mi_prof_elf_segment(PT_GNU_EH_FRAME, 0, &range)) return false;
  return (range.end - range.start >= 12 && mi_prof_eh_init(eh, range.start) && eh->count <= (range.end - range.start - 12)/(2*sizeof(int32_t)));
}

static inline uintptr_t mi_prof_eh_start(const mi_prof_eh_t* eh, size_t i) {
  return (eh->base + (uintptr_t)(intptr_t)eh->table[2*i]);
}

// The first function above an address.
static size_t mi_prof_eh_above(const mi_prof_eh_t* eh, uintptr_t p) {
  size_t lo = 0;
  size_t hi = eh->count;
  while (lo < hi) {
    const size_t mid = lo + (hi - lo)/2;
    if (mi_prof_eh_start(eh, mid) <= p) { lo = mid + 1; } else { hi = mid; }
  }
  return lo;
}

#if MI_PROF_USE_UNWIND && MI_PROF_USE_CFI
// A static executable has no such table, but libgcc finds what the linker left there. It may take a lock and allocate.
typedef struct mi_prof_eh_bases_s {
  void* text;
  void* data;
  void* function;
} mi_prof_eh_bases_t;

mi_prof_decl_extern const void* _Unwind_Find_FDE(void* pc, mi_prof_eh_bases_t* bases);
static size_t mi_prof_function_size(const uint8_t* fde);    // in `profile-unwind.c`

static void mi_prof_set_ends_static(mi_prof_range_t* ranges, size_t count) {
  for (size_t i = 0; i < count; i++) {
    mi_prof_eh_bases_t bases;
    const void* const fde = _Unwind_Find_FDE((void*)ranges[i].start, &bases);
    if (fde != NULL && (uintptr_t)bases.function == ranges[i].start) { ranges[i].end = ranges[i].start + mi_prof_function_size((const uint8_t*)fde); }
  }
}
#else
static inline void mi_prof_set_ends_static(mi_prof_range_t* ranges, size_t count) {
  MI_UNUSED(ranges); MI_UNUSED(count);
}
#endif

static inline void mi_prof_set_ends(mi_prof_range_t* ranges, size_t count) {
  mi_prof_eh_t eh;
  if (!mi_prof_elf_eh(&eh)) {
    mi_prof_set_ends_static(ranges, count);
    return;
  }
  for (size_t i = 0; i < count; i++) {
    const size_t next = mi_prof_eh_above(&eh, ranges[i].start);
    if (next == 0 || mi_prof_eh_start(&eh, next - 1) != ranges[i].start) continue;
    ranges[i].end = (next < eh.count ? mi_prof_eh_start(&eh, next) : eh.text.end);
  }
}

#elif defined(__APPLE__)

#if (MI_INTPTR_SIZE == 8)
typedef struct mach_header_64     mi_prof_mach_header_t;
typedef struct segment_command_64 mi_prof_mach_segment_t;
#define MI_PROF_LC_SEGMENT        LC_SEGMENT_64
#else
typedef struct mach_header        mi_prof_mach_header_t;
typedef struct segment_command    mi_prof_mach_segment_t;
#define MI_PROF_LC_SEGMENT        LC_SEGMENT
#endif

mi_prof_decl_extern const mi_prof_mach_header_t __dso_handle __attribute__((visibility("hidden")));   // of our image

// Find a load command; of a segment, the one with this name.
static const struct load_command* mi_prof_mach_command(const mi_prof_mach_header_t* header, uint32_t cmd, const char* segment) {
  const struct load_command* lc = (const struct load_command*)(const void*)(header + 1);
  for (uint32_t i = 0; i < header->ncmds; i++) {
    if (lc->cmd == cmd && (segment == NULL || _mi_streq(((const mi_prof_mach_segment_t*)(const void*)lc)->segname, segment))) return lc;
    lc = (const struct load_command*)(const void*)((const uint8_t*)lc + lc->cmdsize);
  }
  return NULL;
}

static const mi_prof_mach_segment_t* mi_prof_mach_segment(const mi_prof_mach_header_t* header, const char* name) {
  return (const mi_prof_mach_segment_t*)(const void*)mi_prof_mach_command(header, MI_PROF_LC_SEGMENT, name);
}

static inline bool mi_prof_image_range(mi_prof_range_t* range) {
  const mi_prof_mach_segment_t* const text = mi_prof_mach_segment(&__dso_handle, "__TEXT");
  if (text == NULL) return false;
  range->start = (uintptr_t)&__dso_handle;
  range->end   = range->start + (uintptr_t)text->vmsize;
  return true;
}

// `LC_FUNCTION_STARTS` holds the distances between the starts of all functions (uleb128).
static inline void mi_prof_set_ends(mi_prof_range_t* ranges, size_t count) {
  const mi_prof_mach_segment_t* const text = mi_prof_mach_segment(&__dso_handle, "__TEXT");
  const mi_prof_mach_segment_t* const link = mi_prof_mach_segment(&__dso_handle, "__LINKEDIT");
  const struct linkedit_data_command* const starts =
    (const struct linkedit_data_command*)(const void*)mi_prof_mach_command(&__dso_handle, LC_FUNCTION_STARTS, NULL);
  if (text == NULL || link == NULL || starts == NULL) return;
  const uintptr_t slide = (uintptr_t)&__dso_handle - (uintptr_t)text->vmaddr;
  const uint8_t* p = (const uint8_t*)(slide + (uintptr_t)link->vmaddr + (starts->dataoff - (uintptr_t)link->fileoff));
  const uint8_t* const end = p + starts->datasize;
  uintptr_t fun = (uintptr_t)&__dso_handle;
  size_t i = 0;
  while (p < end && i < count) {
    uintptr_t delta = 0;
    for (unsigned shift = 0; p < end; shift += 7) {
      const uint8_t b = *p++;
      if (shift < 8*sizeof(uintptr_t)) { delta |= (uintptr_t)(b & 0x7F) << shift; }
      if ((b & 0x80) == 0) break;
    }
    if (delta == 0) break;
    const uintptr_t next = fun + delta;
    while (i < count && ranges[i].start < fun) { i++; }
    if (i < count && ranges[i].start == fun) { ranges[i].end = next; i++; }
    fun = next;
  }
}

#else

static inline bool mi_prof_image_range(mi_prof_range_t* range) {
  MI_UNUSED(range); return false;
}

static inline void mi_prof_set_ends(mi_prof_range_t* ranges, size_t count) {
  MI_UNUSED(ranges); MI_UNUSED(count);
}

#endif

static void mi_prof_own_setup(void) {
  uintptr_t expected = 0;
  if (!mi_atomic_cas_strong_acq_rel(&mi_prof_own_init, &expected, (uintptr_t)1)) return;
  #if defined(MI_SHARED_LIB_EXPORT)
  if (mi_prof_image_range(&mi_prof_own[0])) { mi_atomic_store_release(&mi_prof_own_count, (uintptr_t)1); }
  #else
  uintptr_t aligned[MI_PROF_ALIGNED_FUNCTIONS] = { 0 };
  _mi_prof_aligned_functions(aligned);
  size_t count = 0;
  for (size_t i = 0; i < MI_PROF_OWN_MAX; i++) {
    uintptr_t start = (i < MI_PROF_ALIGNED_FUNCTIONS ? aligned[i] : (uintptr_t)mi_prof_entries[i - MI_PROF_ALIGNED_FUNCTIONS]);
    if (start == 0) continue;
    #if defined(_MSC_VER) && (defined(_M_X64) || defined(_M_IX86))
    if (*(const uint8_t*)start == 0xE9) {   // incremental linking calls through jumps
      start += 5 + (uintptr_t)(intptr_t)(*(const int32_t*)(start + 1));
    }
    #endif
    size_t j = count;
    while (j > 0 && mi_prof_own[j-1].start > start) { j--; }
    if (j > 0 && mi_prof_own[j-1].start == start) continue;   // merged functions
    for (size_t k = count; k > j; k--) { mi_prof_own[k] = mi_prof_own[k-1]; }
    mi_prof_own[j].start = start;
    mi_prof_own[j].end = 0;
    count++;
  }
  mi_prof_set_ends(mi_prof_own, count);
  size_t known = 0;
  for (size_t i = 0; i < count; i++) {
    if (mi_prof_own[i].end > mi_prof_own[i].start) { mi_prof_own[known++] = mi_prof_own[i]; }
  }
  mi_atomic_store_release(&mi_prof_own_count, (uintptr_t)known);
  #endif
}
