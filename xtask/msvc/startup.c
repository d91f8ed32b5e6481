// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.

// What Microsoft's C run-time library links into each program, as far as the tests need it, so that they can be built
// for the MSVC ABI without it: the entry point, initializers, thread-local storage and the stack probe.

#include <stdint.h>
#include <stdlib.h>
#include <windows.h>

/* -----------------------------------------------------------
  Thread-local storage: the loader finds it by `_tls_used`
----------------------------------------------------------- */

#pragma section(".tls", long, read, write)
#pragma section(".tls$ZZZ", long, read, write)
#pragma section(".CRT$XLA", long, read)
#pragma section(".CRT$XLZ", long, read)
#pragma section(".rdata$T", long, read)

ULONG _tls_index = 0;

__declspec(allocate(".tls"))      char _tls_start = 0;
__declspec(allocate(".tls$ZZZ"))  char _tls_end = 0;
__declspec(allocate(".CRT$XLA"))  PIMAGE_TLS_CALLBACK __xl_a = 0;
__declspec(allocate(".CRT$XLZ"))  PIMAGE_TLS_CALLBACK __xl_z = 0;

__declspec(allocate(".rdata$T")) extern const IMAGE_TLS_DIRECTORY64 _tls_used;
const IMAGE_TLS_DIRECTORY64 _tls_used = {
  (ULONGLONG)&_tls_start, (ULONGLONG)&_tls_end, (ULONGLONG)&_tls_index, (ULONGLONG)(&__xl_a + 1), 0, { 0 }
};

/* -----------------------------------------------------------
  Initializers: the linker sorts them by the name of their section
----------------------------------------------------------- */

typedef int  (__cdecl* init_e_t)(void);
typedef void (__cdecl* init_t)(void);

#pragma section(".CRT$XIA", long, read)
#pragma section(".CRT$XIZ", long, read)
#pragma section(".CRT$XCA", long, read)
#pragma section(".CRT$XCZ", long, read)
__declspec(allocate(".CRT$XIA"))  init_e_t __xi_a = 0;
__declspec(allocate(".CRT$XIZ"))  init_e_t __xi_z = 0;
__declspec(allocate(".CRT$XCA"))  init_t   __xc_a = 0;
__declspec(allocate(".CRT$XCZ"))  init_t   __xc_z = 0;

/* -----------------------------------------------------------
  The entry point
----------------------------------------------------------- */

__declspec(dllimport) int    __cdecl _configure_narrow_argv(int mode);
__declspec(dllimport) int    __cdecl _initialize_narrow_environment(void);
__declspec(dllimport) int*   __cdecl __p___argc(void);
__declspec(dllimport) char*** __cdecl __p___argv(void);
__declspec(dllimport) int    __cdecl _crt_atexit(init_t fun);

int main(int argc, char** argv);

int _fltused = 1;

static int __cdecl startup_atexit(init_t fun) { return _crt_atexit(fun); }
int (__cdecl* const __imp_atexit)(init_t) = &startup_atexit;

// The system tells the callbacks of a program that it ends; wine does that for libraries only. This runs after all that
// the program itself has registered.
static void __cdecl startup_detach(void) {
  for (volatile PIMAGE_TLS_CALLBACK* f = &__xl_a; f < &__xl_z; f++) {
    if (*f != 0) { (*f)(GetModuleHandleA(NULL), DLL_PROCESS_DETACH, (PVOID)1); }
  }
}

void mainCRTStartup(void) {
  _configure_narrow_argv(1);
  if (GetProcAddress(GetModuleHandleA("ntdll.dll"), "wine_get_version") != 0) { _crt_atexit(&startup_detach); }
  _initialize_narrow_environment();
  for (volatile init_e_t* f = &__xi_a; f < &__xi_z; f++) {
    if (*f != 0 && (*f)() != 0) { ExitProcess(255); }
  }
  for (volatile init_t* f = &__xc_a; f < &__xc_z; f++) {
    if (*f != 0) { (*f)(); }
  }
  exit(main(*__p___argc(), *__p___argv()));
}

// Touches each page of a large frame (`rax` bytes), so that the stack can grow.
__asm__(
  ".text\n"
  ".globl __chkstk\n"
  "__chkstk:\n"
  "  pushq %rcx\n"
  "  pushq %rax\n"
  "  leaq 24(%rsp), %rcx\n"
  "1: cmpq $0x1000, %rax\n"
  "  jb 2f\n"
  "  subq $0x1000, %rcx\n"
  "  testq %rcx, (%rcx)\n"
  "  subq $0x1000, %rax\n"
  "  jmp 1b\n"
  "2: subq %rax, %rcx\n"
  "  testq %rcx, (%rcx)\n"
  "  popq %rax\n"
  "  popq %rcx\n"
  "  ret\n");
