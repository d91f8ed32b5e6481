// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.

// This file is included in `src/profile-prim.c`

#if !defined(MI_IN_PROFILE_C)
#error "this file should be included from 'profile-prim.c' (as it is a part of that)"
#endif

// The modules of the process, for a dump. Nothing here allocates, uses libc's buffers, or changes `errno`.

#include "mimalloc.h"
#include "mimalloc/internal.h"
#include "mimalloc/atomic.h"
#include "profile-internal.h"

#include <errno.h>

#if defined(_WIN32)
  #include <windows.h>
  #ifndef PSAPI_VERSION
  #define PSAPI_VERSION 2       // in kernel32
  #endif
  #include <psapi.h>
#elif !defined(__wasi__)
  #define MI_PROF_USE_POSIX     1
  #include <fcntl.h>
  #include <unistd.h>
  #include <sys/stat.h>
  #include <sys/types.h>
#endif
#if defined(__linux__)
  #include <sys/auxv.h>
  #include <sys/syscall.h>
  #include <sys/uio.h>          // iovec
#elif defined(__FreeBSD__)
  #include <link.h>             // dl_iterate_phdr
#elif defined(__APPLE__)
  #include <mach-o/dyld.h>
#endif

#if MI_PROF_USE_POSIX

// By system call where we can: these are no points where a thread is cancelled, and are not intercepted.
static int mi_prof_sys_open(const char* path, int flags, int mode) {
  #if defined(__linux__) && defined(SYS_openat)
  return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
  #else
  return open(path, flags, mode);
  #endif
}

static inline ssize_t mi_prof_sys_read(int fd, void* buf, size_t size) {
  ssize_t n;
  do {
    #if defined(__linux__) && defined(SYS_read)
    n = (ssize_t)syscall(SYS_read, fd, buf, size);
    #else
    n = read(fd, buf, size);
    #endif
  } while (n < 0 && errno == EINTR);
  return n;
}

static int mi_prof_sys_close(int fd) {
  #if defined(__linux__) && defined(SYS_close)
  return (int)syscall(SYS_close, fd);
  #else
  return close(fd);
  #endif
}

#endif


/* -----------------------------------------------------------
  Modules: the list as it is built
----------------------------------------------------------- */

typedef struct mi_prof_module_list_s {
  mi_prof_module_t* modules;
  size_t            max;
  size_t            count;
  char*             names;
  size_t            names_size;
  size_t            names_used;
} mi_prof_module_list_t;

// Where the path of the next module goes.
static inline char* mi_prof_modules_name(const mi_prof_module_list_t* list, size_t* size) {
  *size = list->names_size - list->names_used;
  return (list->names + list->names_used);
}

// Add a module; its path, of `name_len` bytes, is at `mi_prof_modules_name` already. A path that did not fit is left out as a
// part of one is wrong. If the list is full, the main module takes the last place.
static mi_prof_module_t* mi_prof_modules_add(mi_prof_module_list_t* list, uintptr_t start, uintptr_t end, uint64_t offset, size_t name_len, bool is_main) {
  if (list->count >= list->max) {
    if (!is_main || list->max == 0) return NULL;
    list->count--;
  }
  mi_prof_module_t* const m = &list->modules[list->count++];
  m->start = start;
  m->end = end;
  m->offset = offset;
  m->build_id_size = 0;
  size_t avail = 0;
  char* const name = mi_prof_modules_name(list, &avail);
  if (name_len < avail) {
    name[name_len] = 0;
    m->path = name;
    list->names_used += name_len + 1;
  }
  else {
    m->path = "";
  }
  return m;
}

static inline void mi_prof_modules_set_id(mi_prof_module_t* m, const void* id, size_t size) {
  m->build_id_size = (size < MI_PROF_BUILD_ID_MAX ? size : MI_PROF_BUILD_ID_MAX);
  _mi_memcpy(m->build_id, id, m->build_id_size);
}

// Sort by address, then move the main module (by its address) to the front.
static size_t mi_prof_modules_finish(mi_prof_module_list_t* list, uintptr_t main_start) {
  mi_prof_module_t* const m = list->modules;
  for (size_t i = 1; i < list->count; i++) {
    const mi_prof_module_t x = m[i];
    size_t j = i;
    for (; j > 0 && m[j-1].start > x.start; j--) { m[j] = m[j-1]; }
    m[j] = x;
  }
  for (size_t i = 1; i < list->count; i++) {
    if (m[i].start != main_start) continue;
    const mi_prof_module_t x = m[i];
    for (size_t j = i; j > 0; j--) { m[j] = m[j-1]; }
    m[0] = x;
    break;
  }
  return list->count;
}

/* -----------------------------------------------------------
  ELF: find the GNU build id. All reads are bounded and can fail, also where another thread unloads the module or
  the file is truncated.
----------------------------------------------------------- */

#if MI_PROF_USE_ELF

typedef struct mi_prof_image_s {
  uintptr_t start;      // mapped from here, if `fd < 0`
  size_t    size;
  int       fd;
} mi_prof_image_t;

static bool mi_prof_image_read(const mi_prof_image_t* image, uint64_t offset, void* buf, size_t size) {
  if (image->fd >= 0) {
    return (offset <= INT32_MAX && lseek(image->fd, (off_t)offset, SEEK_SET) == (off_t)offset && mi_prof_sys_read(image->fd, buf, size) == (ssize_t)size);
  }
  if (offset > image->size || size > image->size - offset) return false;
  #if defined(__linux__)
  struct iovec local  = { buf, size };
  struct iovec remote = { (void*)(image->start + (uintptr_t)offset), size };
  if (syscall(SYS_process_vm_readv, getpid(), &local, 1UL, &remote, 1UL, 0UL) == (long)size) return true;
  if (errno != ENOSYS && errno != EPERM) return false;    // otherwise it is not allowed, as in some sandboxes and emulators
  #endif
  if (!mi_prof_is_readable(image->start + (uintptr_t)offset, size)) return false;
  _mi_memcpy(buf, (const void*)(image->start + (uintptr_t)offset), size);
  return true;
}

// Read the header. Returns false if this is no ELF image that can be read.
static bool mi_prof_image_ehdr(const mi_prof_image_t* image, MI_PROF_ELF(Ehdr)* ehdr) {
  return (mi_prof_image_read(image, 0, ehdr, sizeof(*ehdr)) &&
          ehdr->e_ident[0] == 0x7F && ehdr->e_ident[1] == 'E' && ehdr->e_ident[2] == 'L' && ehdr->e_ident[3] == 'F' &&
          ehdr->e_ident[EI_CLASS] == (MI_INTPTR_SIZE == 8 ? ELFCLASS64 : ELFCLASS32) &&
          ehdr->e_phentsize == sizeof(MI_PROF_ELF(Phdr)) && ehdr->e_phnum <= 256);
}

// Returns false if this is no ELF image that can be read; true also if it just has no build id.
static bool mi_prof_image_build_id(const mi_prof_image_t* image, mi_prof_module_t* m) {
  MI_PROF_ELF(Ehdr) ehdr;
  if (!mi_prof_image_ehdr(image, &ehdr)) return false;
  for (size_t i = 0; i < ehdr.e_phnum; i++) {
    MI_PROF_ELF(Phdr) phdr;
    if (!mi_prof_image_read(image, (uint64_t)ehdr.e_phoff + i*sizeof(phdr), &phdr, sizeof(phdr))) return false;
    if (phdr.p_type != PT_NOTE || phdr.p_filesz > MI_MiB) continue;
    const size_t align = (phdr.p_align == 8 ? 8 : 4);
    const size_t end   = (size_t)phdr.p_filesz;
    for (size_t pos = 0; pos + 16 <= end; ) {
      struct { uint32_t name_size; uint32_t desc_size; uint32_t type; char name[4]; } note;
      if (!mi_prof_image_read(image, (uint64_t)phdr.p_offset + pos, &note, sizeof(note))) return false;
      if (note.name_size > end || note.desc_size > end) break;
      const size_t desc = pos + _mi_align_up(12 + (size_t)note.name_size, align);
      if (note.type == NT_GNU_BUILD_ID && note.name_size == 4 && note.name[0] == 'G' && note.name[1] == 'N' && note.name[2] == 'U' && note.name[3] == 0) {
        uint8_t id[MI_PROF_BUILD_ID_MAX];
        const size_t size = (note.desc_size < sizeof(id) ? note.desc_size : sizeof(id));
        if (desc + size > end || !mi_prof_image_read(image, (uint64_t)phdr.p_offset + desc, id, size)) return false;
        mi_prof_modules_set_id(m, id, size);
        return true;
      }
      pos = desc + _mi_align_up((size_t)note.desc_size, align);
    }
  }
  return true;
}

#endif

/* -----------------------------------------------------------
  Modules per system
----------------------------------------------------------- */

#if defined(__linux__) && MI_PROF_USE_ELF

// `/proc/self/maps`, a character at a time so that lines may have any length.
typedef struct mi_prof_maps_s {
  int    fd;
  int    c;       // current character, or -1 at the end
  size_t pos;
  size_t len;
  char   buf[1024];
} mi_prof_maps_t;

typedef struct mi_prof_mapping_s {
  uintptr_t start;
  uintptr_t end;
  bool      read;
  bool      exec;
  uint64_t  offset;
  uint64_t  dev_major;
  uint64_t  dev_minor;
  uint64_t  inode;
} mi_prof_mapping_t;

static bool mi_prof_mapping_is_same_file(const mi_prof_mapping_t* m, const mi_prof_mapping_t* n) {
  return (m->inode == n->inode && m->dev_major == n->dev_major && m->dev_minor == n->dev_minor && (m->inode != 0 || m->start == n->start));
}

static void mi_prof_maps_next(mi_prof_maps_t* maps) {
  if (maps->pos >= maps->len) {
    const ssize_t n = mi_prof_sys_read(maps->fd, maps->buf, sizeof(maps->buf));
    maps->pos = 0;
    maps->len = (n > 0 ? (size_t)n : 0);
  }
  maps->c = (maps->pos < maps->len ? (int)(uint8_t)maps->buf[maps->pos++] : -1);
}

static bool mi_prof_maps_open(mi_prof_maps_t* maps) {
  maps->fd = mi_prof_sys_open("/proc/self/maps", O_RDONLY | O_CLOEXEC, 0);
  if (maps->fd < 0) return false;
  maps->pos = maps->len = 0;
  mi_prof_maps_next(maps);
  return true;
}

static void mi_prof_maps_close(mi_prof_maps_t* maps) {
  (void)mi_prof_sys_close(maps->fd);
}

static uint64_t mi_prof_maps_number(mi_prof_maps_t* maps, unsigned base) {
  uint64_t n = 0;
  while (true) {
    const int c = maps->c;
    const int digit = (c >= '0' && c <= '9' ? c - '0' : (c >= 'a' && c <= 'f' ? c - 'a' + 10 : 16));
    if (digit >= (int)base) return n;
    n = n*base + (unsigned)digit;
    mi_prof_maps_next(maps);
  }
}

static void mi_prof_maps_skip(mi_prof_maps_t* maps) {
  if (maps->c >= 0 && maps->c != '\n') { mi_prof_maps_next(maps); }
}

// Read all of a line but the path.
static bool mi_prof_maps_read(mi_prof_maps_t* maps, mi_prof_mapping_t* map) {
  if (maps->c < 0) return false;
  map->start = (uintptr_t)mi_prof_maps_number(maps, 16);
  mi_prof_maps_skip(maps);
  map->end = (uintptr_t)mi_prof_maps_number(maps, 16);
  mi_prof_maps_skip(maps);
  map->read = (maps->c == 'r'); mi_prof_maps_skip(maps);
  mi_prof_maps_skip(maps);
  map->exec = (maps->c == 'x'); mi_prof_maps_skip(maps);
  mi_prof_maps_skip(maps);
  mi_prof_maps_skip(maps);
  map->offset = mi_prof_maps_number(maps, 16);
  mi_prof_maps_skip(maps);
  map->dev_major = mi_prof_maps_number(maps, 16);
  mi_prof_maps_skip(maps);
  map->dev_minor = mi_prof_maps_number(maps, 16);
  mi_prof_maps_skip(maps);
  map->inode = mi_prof_maps_number(maps, 10);
  return (map->end > map->start);
}

// Read the path up to the end of the line, into `buf` as far as it fits, and return its full length.
static size_t mi_prof_maps_path(mi_prof_maps_t* maps, char* buf, size_t size) {
  while (maps->c == ' ') { mi_prof_maps_next(maps); }
  size_t len = 0;
  while (maps->c >= 0 && maps->c != '\n') {
    if (len < size) { buf[len] = (char)maps->c; }
    len++;
    mi_prof_maps_next(maps);
  }
  if (maps->c == '\n') { mi_prof_maps_next(maps); }
  return len;
}

static size_t mi_prof_modules_collect(mi_prof_module_list_t* list) {
  mi_prof_maps_t maps;
  if (!mi_prof_maps_open(&maps)) return 0;
  const uintptr_t entry = (uintptr_t)getauxval(AT_ENTRY);   // of the main executable
  uintptr_t main_start = 0;
  mi_prof_mapping_t head = { 0, 0, false, false, 1, 0, 0, 0 };   // of the file's header
  mi_prof_mapping_t map;
  while (mi_prof_maps_read(&maps, &map)) {
    size_t avail = 0;
    char* const name = mi_prof_modules_name(list, &avail);
    size_t len = mi_prof_maps_path(&maps, name, avail);
    if (map.offset == 0 && map.inode != 0) { head = map; }
    // nameless executable memory is generated code; of the kernel's own only the vdso has functions.
    if (!map.exec || len == 0 || avail == 0) continue;
    if (name[0] != '/' && !(len == 6 && avail > 6 && _mi_strnicmp(name, "[vdso]", 6) == 0)) continue;
    const char* const deleted = " (deleted)";
    const size_t dlen = _mi_strlen(deleted);
    if (len > dlen && len <= avail && _mi_strnicmp(name + len - dlen, deleted, dlen) == 0) { len -= dlen; }

    const bool is_main = (map.start <= entry && entry < map.end);
    if (is_main) { main_start = map.start; }
    mi_prof_module_t* const m = mi_prof_modules_add(list, map.start, map.end, map.offset, len, is_main);
    if (m == NULL) continue;
    mi_prof_image_t image = { map.start, (size_t)(map.end - map.start), -1 };   // as for the vdso
    bool done = false;
    if (map.inode != 0) {
      if (head.read && mi_prof_mapping_is_same_file(&head, &map)) {
        image.start = head.start;
        image.size  = (size_t)(head.end - head.start);
        done = mi_prof_image_build_id(&image, m);
      }
      if (!done && m->path[0] != 0) {
        // the notes are not mapped with the header.
        image.fd = mi_prof_sys_open(m->path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0);
        if (image.fd >= 0) {
          struct stat st;
          if (fstat(image.fd, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_ino == map.inode) {   // still the same file
            (void)mi_prof_image_build_id(&image, m);
          }
          (void)mi_prof_sys_close(image.fd);
        }
      }
    }
    else {
      (void)mi_prof_image_build_id(&image, m);
    }
  }
  mi_prof_maps_close(&maps);
  return mi_prof_modules_finish(list, main_start);
}

#elif defined(__FreeBSD__) && MI_PROF_USE_ELF

typedef struct mi_prof_iterate_s {
  mi_prof_module_list_t* list;
  uintptr_t              main_start;
  bool                   first;
} mi_prof_iterate_t;

// Called with the loader's lock held, so that the image stays.
static int mi_prof_modules_add_object(struct dl_phdr_info* info, size_t size, void* arg) {
  MI_UNUSED(size);
  mi_prof_iterate_t* const it = (mi_prof_iterate_t*)arg;
  const bool is_main = it->first;    // the main executable comes first
  it->first = false;
  mi_prof_image_t image = { 0, 0, -1 };
  for (size_t i = 0; i < info->dlpi_phnum; i++) {
    const MI_PROF_ELF(Phdr)* const phdr = (const MI_PROF_ELF(Phdr)*)&info->dlpi_phdr[i];
    if (phdr->p_type != PT_LOAD) continue;
    const uintptr_t start = (uintptr_t)info->dlpi_addr + (uintptr_t)phdr->p_vaddr;
    if (phdr->p_offset == 0 && (phdr->p_flags & PF_R) != 0) {
      image.start = start;
      image.size  = (size_t)phdr->p_filesz;
    }
    if ((phdr->p_flags & PF_X) == 0) continue;
    size_t avail = 0;
    char* const name = mi_prof_modules_name(it->list, &avail);
    const size_t len = (info->dlpi_name == NULL ? 0 : _mi_strlen(info->dlpi_name));
    if (len < avail) { _mi_memcpy(name, info->dlpi_name, len); }
    if (is_main) { it->main_start = start; }
    mi_prof_module_t* const m = mi_prof_modules_add(it->list, start, start + (uintptr_t)phdr->p_memsz, (uint64_t)phdr->p_offset, len, is_main);
    if (m != NULL && image.start != 0) { (void)mi_prof_image_build_id(&image, m); }
  }
  return 0;
}

static size_t mi_prof_modules_collect(mi_prof_module_list_t* list) {
  mi_prof_iterate_t it = { list, 0, true };
  dl_iterate_phdr(&mi_prof_modules_add_object, &it);
  return mi_prof_modules_finish(list, it.main_start);
}

#elif defined(__APPLE__)

static size_t mi_prof_modules_collect(mi_prof_module_list_t* list) {
  uintptr_t main_start = 0;
  const uint32_t n = _dyld_image_count();
  for (uint32_t i = 0; i < n; i++) {
    const mi_prof_mach_header_t* const header = (const mi_prof_mach_header_t*)(const void*)_dyld_get_image_header(i);
    const char* const path = _dyld_get_image_name(i);
    if (header == NULL || path == NULL) continue;    // unloaded meanwhile
    const mi_prof_mach_segment_t* const text = mi_prof_mach_segment(header, "__TEXT");
    if (text == NULL) continue;
    size_t avail = 0;
    char* const name = mi_prof_modules_name(list, &avail);
    const size_t len = _mi_strlen(path);
    if (len < avail) { _mi_memcpy(name, path, len); }
    const uintptr_t start = (uintptr_t)header;
    const bool is_main = (header->filetype == MH_EXECUTE);
    if (is_main) { main_start = start; }
    mi_prof_module_t* const m = mi_prof_modules_add(list, start, start + (uintptr_t)text->vmsize, (uint64_t)text->fileoff, len, is_main);
    const struct uuid_command* const uuid = (const struct uuid_command*)(const void*)mi_prof_mach_command(header, LC_UUID, NULL);
    if (m != NULL && uuid != NULL) { mi_prof_modules_set_id(m, uuid->uuid, sizeof(uuid->uuid)); }
  }
  return mi_prof_modules_finish(list, main_start);
}

#elif defined(_WIN32)

static bool mi_prof_win_read(const void* p, void* buf, size_t size) {
  SIZE_T n = 0;
  return (ReadProcessMemory(GetCurrentProcess(), p, buf, size, &n) && n == size);   // fails where a module was unloaded
}

// The id that symbol servers use: that of the PDB file, as its text reads.
static void mi_prof_win_build_id(const uint8_t* base, mi_prof_module_t* m) {
  IMAGE_DOS_HEADER dos;
  IMAGE_NT_HEADERS nt;
  if (!mi_prof_win_read(base, &dos, sizeof(dos)) || dos.e_magic != IMAGE_DOS_SIGNATURE) return;
  if (!mi_prof_win_read(base + dos.e_lfanew, &nt, sizeof(nt)) || nt.Signature != IMAGE_NT_SIGNATURE) return;
  const IMAGE_DATA_DIRECTORY dir = nt.OptionalHeader.DataDirectory[IMAGE_DIRECTORY_ENTRY_DEBUG];
  for (DWORD i = 0; i < dir.Size/sizeof(IMAGE_DEBUG_DIRECTORY) && i < 64; i++) {
    IMAGE_DEBUG_DIRECTORY debug;
    struct { uint32_t magic; uint8_t guid[16]; uint32_t age; } pdb;
    if (!mi_prof_win_read(base + dir.VirtualAddress + i*sizeof(debug), &debug, sizeof(debug))) return;
    if (debug.Type != IMAGE_DEBUG_TYPE_CODEVIEW || debug.SizeOfData < sizeof(pdb) || debug.AddressOfRawData == 0) continue;
    if (!mi_prof_win_read(base + debug.AddressOfRawData, &pdb, sizeof(pdb)) || pdb.magic != 0x53445352 /* RSDS */) continue;
    static const uint8_t order[16] = { 3,2,1,0, 5,4, 7,6, 8,9,10,11,12,13,14,15 };
    uint8_t id[16];
    for (size_t j = 0; j < 16; j++) { id[j] = pdb.guid[order[j]]; }
    mi_prof_modules_set_id(m, id, sizeof(id));
    return;
  }
}

static size_t mi_prof_modules_collect(mi_prof_module_list_t* list) {
  const DWORD err = GetLastError();
  const HANDLE process = GetCurrentProcess();
  const HMODULE self = GetModuleHandleW(NULL);
  HMODULE handles[512];
  DWORD needed = 0;
  if (!EnumProcessModules(process, handles, sizeof(handles), &needed)) { needed = 0; }
  size_t n = needed / sizeof(HMODULE);
  if (n > sizeof(handles)/sizeof(handles[0])) { n = sizeof(handles)/sizeof(handles[0]); }
  for (size_t i = 0; i < n; i++) {
    MODULEINFO info;
    if (!GetModuleInformation(process, handles[i], &info, sizeof(info))) continue;
    WCHAR path[1024];
    const DWORD len = GetModuleFileNameExW(process, handles[i], path, 1024);
    size_t avail = 0;
    char* const name = mi_prof_modules_name(list, &avail);
    int size = (len > 0 && len < 1024 ? WideCharToMultiByte(CP_UTF8, 0, path, (int)len, NULL, 0, NULL, NULL) : 0);
    if (size > 0 && (size_t)size < avail) { size = WideCharToMultiByte(CP_UTF8, 0, path, (int)len, name, size, NULL, NULL); }
    const uintptr_t start = (uintptr_t)info.lpBaseOfDll;
    mi_prof_module_t* const m = mi_prof_modules_add(list, start, start + info.SizeOfImage, 0, (size_t)size, handles[i] == self);
    if (m != NULL) { mi_prof_win_build_id((const uint8_t*)info.lpBaseOfDll, m); }
  }
  SetLastError(err);
  return mi_prof_modules_finish(list, (uintptr_t)self);
}

#else

static size_t mi_prof_modules_collect(mi_prof_module_list_t* list) {
  return mi_prof_modules_finish(list, 0);
}

#endif

size_t _mi_prof_prim_modules(mi_prof_module_t* modules, size_t max, char* names, size_t names_size) {
  const int err = errno;
  mi_prof_module_list_t list = { modules, max, 0, names, names_size, 0 };
  const size_t count = mi_prof_modules_collect(&list);
  errno = err;
  return count;
}
