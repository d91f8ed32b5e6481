// Prints the sizes of mimalloc's structures.
#include <mimalloc.h>
#include <mimalloc/types.h>
#include <stdio.h>

int main(void) {
  printf("mi_page_t %zu\nmi_segment_t %zu\nmi_tld_t %zu\nmi_heap_t %zu\n",
         sizeof(mi_page_t), sizeof(mi_segment_t), sizeof(mi_tld_t), sizeof(mi_heap_t));
  return 0;
}
