# The profiler's tests: every test/test-profile*.c. Included where upstream registers its own.

if(MI_PPROF)
  file(GLOB mi_prof_tests RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/test/test-profile*.c)
else()
  set(mi_prof_tests "")
endif()

# Tests see the library's internals, which are hidden in a shared library and have the linkage of its language.
if(MI_USE_CXX)
  set_source_files_properties(${mi_prof_tests} PROPERTIES LANGUAGE CXX)
endif()

# The library needs no mathematics, the tests' expectations do.
set(MI_LIB_M "")
if(NOT WIN32)
  find_link_library("m" MI_LIB_M)
endif()

# These need internals that a shared library hides: without a static one they carry the library's source in them.
set(mi_prof_internal_tests test-profile-estimate test-profile-fault test-profile-parts test-profile-prim test-profile-trigger)

# A test NAME from a source, with the library (mimalloc, mimalloc-static) or its source ("source").
function(mi_prof_add_test NAME SOURCE LIBRARY)
  add_executable(mimalloc-${NAME} ${SOURCE})
  target_compile_definitions(mimalloc-${NAME} PRIVATE ${mi_defines})
  target_compile_options(mimalloc-${NAME} PRIVATE ${mi_cflags})
  target_include_directories(mimalloc-${NAME} PRIVATE include src)
  if(LIBRARY STREQUAL "source")
    target_sources(mimalloc-${NAME} PRIVATE src/static.c)
    target_compile_definitions(mimalloc-${NAME} PRIVATE MI_STATIC_LIB)
  else()
    target_link_libraries(mimalloc-${NAME} PRIVATE ${LIBRARY})
  endif()
  target_link_libraries(mimalloc-${NAME} PRIVATE ${mi_libraries} ${MI_LIB_M})
  add_test(NAME ${NAME} COMMAND mimalloc-${NAME})
endfunction()

foreach(TEST_SOURCE IN LISTS mi_prof_tests)
  get_filename_component(TEST_NAME ${TEST_SOURCE} NAME_WE)
  if(MI_BUILD_STATIC AND NOT MI_DEBUG_TSAN)
    mi_prof_add_test(${TEST_NAME} ${TEST_SOURCE} mimalloc-static)
  elseif(TEST_NAME IN_LIST mi_prof_internal_tests)
    mi_prof_add_test(${TEST_NAME} ${TEST_SOURCE} source)
  else()
    mi_prof_add_test(${TEST_NAME} ${TEST_SOURCE} mimalloc)
  endif()
endforeach()

if(MI_PPROF)
  include("cmake/mi_prof_stack.cmake")
endif()
