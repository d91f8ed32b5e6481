# Runs the port as vcpkg would, with a stand-in for each function that it calls.
#   cmake -DPORT_DIR=DIR -DSCRATCH=DIR -DVCPKG_LIBRARY_LINKAGE=static|dynamic -P vcpkg-check.cmake
cmake_minimum_required(VERSION 3.19)

set(PORT "mimalloc")
set(CURRENT_PACKAGES_DIR "${SCRATCH}/packages")
set(build "${SCRATCH}/build")

function(require path)
  if(NOT EXISTS "${path}")
    message(FATAL_ERROR "${path}: is not there")
  endif()
endfunction()

function(vcpkg_download_distfile variable)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "FILENAME;SHA512" "URLS")
  file(DOWNLOAD "${arg_URLS}" "${SCRATCH}/${arg_FILENAME}" EXPECTED_HASH "SHA512=${arg_SHA512}")
  set(${variable} "${SCRATCH}/${arg_FILENAME}" PARENT_SCOPE)
endfunction()

function(vcpkg_extract_source_archive variable)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "ARCHIVE" "")
  file(ARCHIVE_EXTRACT INPUT "${arg_ARCHIVE}" DESTINATION "${SCRATCH}/source")
  file(GLOB folder "${SCRATCH}/source/*")
  require("${folder}/CMakeLists.txt")
  set(${variable} "${folder}" PARENT_SCOPE)
endfunction()

# No feature is asked for.
function(vcpkg_check_features)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "OUT_FEATURE_OPTIONS" "FEATURES")
  set(options "")
  while(arg_FEATURES)
    list(POP_FRONT arg_FEATURES feature option)
    list(APPEND options "-D${option}=OFF")
  endwhile()
  set(${arg_OUT_FEATURE_OPTIONS} "${options}" PARENT_SCOPE)
endfunction()

function(vcpkg_cmake_configure)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "SOURCE_PATH" "OPTIONS")
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -S "${arg_SOURCE_PATH}" -B "${build}" -G Ninja -DCMAKE_BUILD_TYPE=Release
      "-DCMAKE_INSTALL_PREFIX=${CURRENT_PACKAGES_DIR}" -DCMAKE_INSTALL_LIBDIR=lib ${arg_OPTIONS}
    COMMAND_ERROR_IS_FATAL ANY)
endfunction()

function(vcpkg_cmake_install)
  execute_process(COMMAND "${CMAKE_COMMAND}" --build "${build}" --target install COMMAND_ERROR_IS_FATAL ANY)
endfunction()

function(vcpkg_copy_pdbs)
endfunction()

function(vcpkg_cmake_config_fixup)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "CONFIG_PATH" "")
  require("${CURRENT_PACKAGES_DIR}/${arg_CONFIG_PATH}/mimalloc-config.cmake")
endfunction()

function(vcpkg_fixup_pkgconfig)
  require("${CURRENT_PACKAGES_DIR}/lib/pkgconfig/mimalloc.pc")
endfunction()

function(vcpkg_install_copyright)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "FILE_LIST")
  require("${arg_FILE_LIST}")
endfunction()

include("${PORT_DIR}/portfile.cmake")
require("${CURRENT_PACKAGES_DIR}/include/mimalloc/profile.h")
require("${CURRENT_PACKAGES_DIR}/share/${PORT}/usage")
