module async_fifo #(
    parameter p_data_width = 32,
    parameter p_addr_width = 16
) (
    input  wire                    i_wr_clk,
    input  wire                    i_wr_rst_n,
    input  wire                    i_wr_en,
    input  wire [p_data_width-1:0] i_wr_data,
    output wire                    o_fifo_full,
    input  wire                    i_rd_clk,
    input  wire                    i_rd_rst_n,
    input  wire                    i_rd_en,
    output wire [p_data_width-1:0] o_rd_data,
    output wire                    o_fifo_empty
);
    wire [p_addr_width-1:0] w_wr_bin_addr, w_rd_bin_addr;
    wire [p_addr_width:0]   w_wr_grey_addr, w_rd_grey_addr, w_rd_ptr_sync, w_wr_ptr_sync;

    read_to_write_pointer_sync #(p_addr_width) read_to_write_pointer_sync_inst (
        .o_rd_ptr_sync(w_rd_ptr_sync), .i_rd_grey_addr(w_rd_grey_addr), .i_wr_clk(i_wr_clk), .i_wr_rst_n(i_wr_rst_n)
    );
    write_to_read_pointer_sync #(p_addr_width) write_to_read_pointer_sync_inst (
        .i_rd_clk(i_rd_clk), .i_rd_rst_n(i_rd_rst_n), .i_wr_grey_addr(w_wr_grey_addr), .o_wr_ptr_sync(w_wr_ptr_sync)
    );
    wptr_full #(p_addr_width) wptr_full_inst (
        .i_wr_clk(i_wr_clk), .i_wr_rst_n(i_wr_rst_n), .i_wr_en(i_wr_en), .i_rd_ptr_sync(w_rd_ptr_sync),
        .o_fifo_full(o_fifo_full), .o_wr_bin_addr(w_wr_bin_addr), .o_wr_grey_addr(w_wr_grey_addr)
    );
    fifo_memory #(p_data_width, p_addr_width) fifo_memory_inst (
        .i_wr_clk(i_wr_clk), .i_wr_clk_en(i_wr_en), .i_wr_addr(w_wr_bin_addr), .i_wr_data(i_wr_data),
        .i_wr_full(o_fifo_full), .i_rd_clk(i_rd_clk), .i_rd_clk_en(i_rd_en), .i_rd_addr(w_rd_bin_addr),
        .o_rd_data(o_rd_data)
    );
    rptr_empty #(p_addr_width) rptr_empty_inst (
        .i_rd_clk(i_rd_clk), .i_rd_rst_n(i_rd_rst_n), .i_rd_en(i_rd_en), .i_wr_ptr_sync(w_wr_ptr_sync),
        .o_fifo_empty(o_fifo_empty), .o_rd_bin_addr(w_rd_bin_addr), .o_rd_grey_addr(w_rd_grey_addr)
    );
endmodule

module fifo_memory #(
    parameter p_data_width = 32,
    parameter p_addr_width = 16
) (
    input  wire                    i_wr_clk,
    input  wire                    i_wr_clk_en,
    input  wire [p_addr_width-1:0] i_wr_addr,
    input  wire [p_data_width-1:0] i_wr_data,
    input  wire                    i_wr_full,
    input  wire                    i_rd_clk,
    input  wire                    i_rd_clk_en,
    input  wire [p_addr_width-1:0] i_rd_addr,
    output reg  [p_data_width-1:0] o_rd_data
);
    reg [p_data_width-1:0] words [0:(1<<p_addr_width)-1];

    always @(posedge i_wr_clk) if (i_wr_clk_en && !i_wr_full) words[i_wr_addr] <= i_wr_data;
    always @(posedge i_rd_clk) if (i_rd_clk_en) o_rd_data <= words[i_rd_addr];
endmodule

module read_to_write_pointer_sync #(parameter p_addr_width = 16) (
    input  wire                  i_wr_clk,
    input  wire                  i_wr_rst_n,
    input  wire [p_addr_width:0] i_rd_grey_addr,
    output reg  [p_addr_width:0] o_rd_ptr_sync
);
    reg [p_addr_width:0] first;

    always @(posedge i_wr_clk or negedge i_wr_rst_n)
        if (!i_wr_rst_n) {o_rd_ptr_sync, first} <= 0;
        else {o_rd_ptr_sync, first} <= {first, i_rd_grey_addr};
endmodule

module write_to_read_pointer_sync #(parameter p_addr_width = 16) (
    input  wire                  i_rd_clk,
    input  wire                  i_rd_rst_n,
    input  wire [p_addr_width:0] i_wr_grey_addr,
    output reg  [p_addr_width:0] o_wr_ptr_sync
);
    reg [p_addr_width:0] first;

    always @(posedge i_rd_clk or negedge i_rd_rst_n)
        if (!i_rd_rst_n) {o_wr_ptr_sync, first} <= 0;
        else {o_wr_ptr_sync, first} <= {first, i_wr_grey_addr};
endmodule

module wptr_full #(parameter p_addr_width = 16) (
    input  wire                    i_wr_clk,
    input  wire                    i_wr_rst_n,
    input  wire                    i_wr_en,
    input  wire [p_addr_width:0]   i_rd_ptr_sync,
    output reg                     o_fifo_full,
    output wire [p_addr_width-1:0] o_wr_bin_addr,
    output reg  [p_addr_width:0]   o_wr_grey_addr
);
    reg  [p_addr_width:0] count;
    wire [p_addr_width:0] next = count + (i_wr_en && !o_fifo_full);
    wire [p_addr_width:0] grey = next ^ (next >> 1);

    assign o_wr_bin_addr = count[p_addr_width-1:0];

    always @(posedge i_wr_clk or negedge i_wr_rst_n)
        if (!i_wr_rst_n) {count, o_wr_grey_addr, o_fifo_full} <= 0;
        else begin
            count <= next;
            o_wr_grey_addr <= grey;
            o_fifo_full <= grey == (i_rd_ptr_sync ^ {2'b11, {p_addr_width - 1{1'b0}}});
        end
endmodule

module rptr_empty #(parameter p_addr_width = 16) (
    input  wire                    i_rd_clk,
    input  wire                    i_rd_rst_n,
    input  wire                    i_rd_en,
    input  wire [p_addr_width:0]   i_wr_ptr_sync,
    output reg                     o_fifo_empty,
    output wire [p_addr_width-1:0] o_rd_bin_addr,
    output reg  [p_addr_width:0]   o_rd_grey_addr
);
    reg  [p_addr_width:0] count;
    wire [p_addr_width:0] next = count + (i_rd_en && !o_fifo_empty);
    wire [p_addr_width:0] grey = next ^ (next >> 1);

    assign o_rd_bin_addr = count[p_addr_width-1:0];

    always @(posedge i_rd_clk or negedge i_rd_rst_n)
        if (!i_rd_rst_n) {count, o_rd_grey_addr, o_fifo_empty} <= 1;
        else begin
            count <= next;
            o_rd_grey_addr <= grey;
            o_fifo_empty <= grey == i_wr_ptr_sync;
        end
endmodule
