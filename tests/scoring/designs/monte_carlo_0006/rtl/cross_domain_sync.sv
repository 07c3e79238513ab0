// A FIFO between the clocks. Nothing can hold the source back: samples may come faster than the destination's clock for
// as long as there is room. After an overflow the source waits until everything was read, so that what is lost is one
// gap instead of single samples here and there.
module cross_domain_sync #(
    parameter DATA_WIDTH = 16,
    parameter DEPTH = 8
) (
    input  logic                  clk_src,
    input  logic                  clk_dst,
    input  logic                  rst_n,
    input  logic [DATA_WIDTH-1:0] data_src,
    input  logic                  valid_src,
    output logic [DATA_WIDTH-1:0] data_dst,
    output logic                  valid_dst
);
    localparam ADDR_W = $clog2(DEPTH);

    function automatic [ADDR_W:0] gray(input [ADDR_W:0] value);
        gray = value ^ (value >> 1);
    endfunction

    logic [DATA_WIDTH-1:0] mem [0:DEPTH-1];
    logic [ADDR_W:0]       wr_ptr, wr_gray, wr_gray_meta, wr_gray_dst;
    logic [ADDR_W:0]       rd_ptr, rd_gray, rd_gray_meta, rd_gray_src;
    logic                  overflowed;

    // In Gray code, a distance of DEPTH shows as the two highest bits inverted.
    wire full = wr_gray == {~rd_gray_src[ADDR_W:ADDR_W-1], rd_gray_src[ADDR_W-2:0]};
    wire drained = wr_gray == rd_gray_src;
    wire write = valid_src && !full && (!overflowed || drained);

    always_ff @(posedge clk_src or negedge rst_n)
        if (!rst_n) {wr_ptr, wr_gray, rd_gray_meta, rd_gray_src, overflowed} <= 0;
        else begin
            {rd_gray_src, rd_gray_meta} <= {rd_gray_meta, rd_gray};
            overflowed <= (overflowed && !drained) || (valid_src && full);
            if (write) begin
                mem[wr_ptr[ADDR_W-1:0]] <= data_src;
                wr_ptr <= wr_ptr + 1;
                wr_gray <= gray(wr_ptr + 1);
            end
        end

    always_ff @(posedge clk_dst or negedge rst_n)
        if (!rst_n) {rd_ptr, rd_gray, wr_gray_meta, wr_gray_dst, data_dst, valid_dst} <= 0;
        else begin
            {wr_gray_dst, wr_gray_meta} <= {wr_gray_meta, wr_gray};
            valid_dst <= rd_gray != wr_gray_dst;
            if (rd_gray != wr_gray_dst) begin
                data_dst <= mem[rd_ptr[ADDR_W-1:0]];
                rd_ptr <= rd_ptr + 1;
                rd_gray <= gray(rd_ptr + 1);
            end
        end
endmodule
