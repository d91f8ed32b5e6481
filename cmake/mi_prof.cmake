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
set(mi_prof_internal_tests test-profile-estimate test-profile-fault test-profile-parts test-profile-prim)

foreach(TEST_SOURCE IN LISTS mi_prof_tests)
  get_filename_component(TEST_NAME ${TEST_SOURCE} NAME_WE)
  add_executable(mimalloc-${TEST_NAME} ${TEST_SOURCE})
  target_compile_definitions(mimalloc-${TEST_NAME} PRIVATE ${mi_defines})
  target_compile_options(mimalloc-${TEST_NAME} PRIVATE ${mi_cflags})
  target_include_directories(mimalloc-${TEST_NAME} PRIVATE include src)
  if(MI_BUILD_STATIC AND NOT MI_DEBUG_TSAN)
    target_link_libraries(mimalloc-${TEST_NAME} PRIVATE mimalloc-static ${mi_libraries} ${MI_LIB_M})
  elseif(TEST_NAME IN_LIST mi_prof_internal_tests)
    target_sources(mimalloc-${TEST_NAME} PRIVATE src/static.c)
    target_compile_definitions(mimalloc-${TEST_NAME} PRIVATE MI_STATIC_LIB)
    target_link_libraries(mimalloc-${TEST_NAME} PRIVATE ${mi_libraries} ${MI_LIB_M})
  else()
    target_link_libraries(mimalloc-${TEST_NAME} PRIVATE mimalloc ${mi_libraries} ${MI_LIB_M})
  endif()
  add_test(NAME ${TEST_NAME} COMMAND mimalloc-${TEST_NAME})
endforeach()
