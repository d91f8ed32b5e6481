# Tests of stacks that depend on how programs and libraries are compiled.

include(CheckCSourceCompiles)
include(CheckIPOSupported)

if(MSVC)
  set(mi_prof_O0 /Od)
  set(mi_prof_O2 /O2)
else()
  set(mi_prof_O0 -O0)
  set(mi_prof_O2 -O2)
  set(mi_prof_fp -fno-omit-frame-pointer -fno-optimize-sibling-calls)
endif()

# A library that one of them loads, and frame pointers for it.
if(UNIX)
  add_library(mimalloc-test-profile-plugin SHARED test/stack/plugin.c)
  target_compile_options(mimalloc-test-profile-plugin PRIVATE -fasynchronous-unwind-tables)   # gcc makes none for C on every processor
  target_compile_options(mimalloc-test-profile-stack-safety PRIVATE ${mi_prof_fp})
  target_compile_definitions(mimalloc-test-profile-stack-safety PRIVATE TEST_FRAME_POINTERS=1
    "MI_TEST_PLUGIN=\"$<TARGET_FILE:mimalloc-test-profile-plugin>\"")
  target_link_libraries(mimalloc-test-profile-stack-safety PRIVATE ${CMAKE_DL_LIBS})
  add_dependencies(mimalloc-test-profile-stack-safety mimalloc-test-profile-plugin)
endif()

# The leaf of a stack: test/stack/leaf.c, and leaf.cpp where C++ has the same C library.
set(mi_prof_leafs c)
if(NOT MI_LIBC_MUSL)
  list(APPEND mi_prof_leafs cpp)
else()
  message(STATUS "mi_prof: no test of leafs in C++: the compiler may be for another C library")
endif()

function(mi_prof_add_leaf_test VARIANT LIBRARY)   # and options
  foreach(LANGUAGE IN LISTS mi_prof_leafs)
    set(NAME test-profile-stack-leaf-${LANGUAGE}-${VARIANT})
    mi_prof_add_test(${NAME} test/stack/leaf.${LANGUAGE} ${LIBRARY})
    target_compile_options(mimalloc-${NAME} PRIVATE ${ARGN})
    set_target_properties(mimalloc-${NAME} PROPERTIES CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON)
    if(MI_DEBUG_UBSAN)
      set_target_properties(mimalloc-${NAME} PROPERTIES LINKER_LANGUAGE CXX)   # the library is in C++ then
    endif()
  endforeach()
endfunction()

foreach(LEVEL O0 O2)
  if(MI_BUILD_STATIC AND NOT MI_DEBUG_TSAN)
    mi_prof_add_leaf_test(${LEVEL}-static mimalloc-static ${mi_prof_${LEVEL}})
  endif()
  if(MI_BUILD_SHARED AND NOT WIN32)
    mi_prof_add_leaf_test(${LEVEL}-shared mimalloc ${mi_prof_${LEVEL}})
  endif()
endforeach()

if(MI_TRACK_ASAN OR MI_DEBUG_TSAN OR MI_DEBUG_UBSAN)
  message(STATUS "mi_prof: no test of leafs with other options of the library: a sanitizer is on")
  return()
endif()

# The library in other ways, for both languages.
function(mi_prof_add_library NAME)   # and options
  add_library(${NAME} OBJECT src/static.c)
  target_compile_definitions(${NAME} PRIVATE ${mi_defines} MI_STATIC_LIB $<$<BOOL:${MI_OVERRIDE}>:MI_MALLOC_OVERRIDE>)
  target_compile_options(${NAME} PRIVATE ${mi_cflags} ${mi_cflags_static} ${ARGN})
  target_include_directories(${NAME} PRIVATE include src)
endfunction()

mi_prof_add_library(mimalloc-test-profile-lib-O0 ${mi_prof_O0})
mi_prof_add_leaf_test(O0-all mimalloc-test-profile-lib-O0 ${mi_prof_O0})

# In a debug build it leaves internal functions of the allocator that are not in our list as the outermost ones.
check_ipo_supported(RESULT mi_prof_lto LANGUAGES C CXX)
if(CMAKE_BUILD_TYPE STREQUAL "Debug" OR MI_DEBUG_FULL)
  message(STATUS "mi_prof: no test of leafs with link-time optimization: a debug build")
elseif(mi_prof_lto AND NOT MSVC)
  mi_prof_add_library(mimalloc-test-profile-lib-lto ${mi_prof_O2})
  mi_prof_add_leaf_test(lto mimalloc-test-profile-lib-lto ${mi_prof_O2})
  set_target_properties(mimalloc-test-profile-lib-lto PROPERTIES INTERPROCEDURAL_OPTIMIZATION ON)
  foreach(LANGUAGE IN LISTS mi_prof_leafs)
    set_target_properties(mimalloc-test-profile-stack-leaf-${LANGUAGE}-lto PROPERTIES INTERPROCEDURAL_OPTIMIZATION ON)
  endforeach()
else()
  message(STATUS "mi_prof: no test of leafs with link-time optimization: the compiler cannot")
endif()

if(NOT MI_BUILD_STATIC)
  return()
endif()

if(DEFINED mi_prof_fp)
  mi_prof_add_leaf_test(fp mimalloc-static ${mi_prof_O2} ${mi_prof_fp} -DTEST_FRAME_POINTERS=1)
endif()

set(CMAKE_REQUIRED_LINK_OPTIONS -static)
check_c_source_compiles("int main(void) { return 0; }" mi_prof_can_link_static)
unset(CMAKE_REQUIRED_LINK_OPTIONS)
if(mi_prof_can_link_static AND NOT WIN32)
  mi_prof_add_leaf_test(all-static mimalloc-static ${mi_prof_O2})
  foreach(LANGUAGE IN LISTS mi_prof_leafs)
    target_link_options(mimalloc-test-profile-stack-leaf-${LANGUAGE}-all-static PRIVATE -static)
  endforeach()
else()
  message(STATUS "mi_prof: no test of leafs in a static executable: the linker cannot")
endif()
