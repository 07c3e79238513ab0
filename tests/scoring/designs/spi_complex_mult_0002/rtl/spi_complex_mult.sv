// Four operands in, most significant bit first, and two results out while the next four come in. SPI mode 0: bits are
// taken with the rising edge and change with the falling one.
module spi_complex_mult #(
    parameter IN_WIDTH = 16,
    parameter OUT_WIDTH = 32
) (
    input  logic rst_async_n,
    input  logic spi_sck,
    input  logic spi_cs_n,
    input  logic spi_mosi,
    output logic spi_miso
);
    logic signed [IN_WIDTH-1:0]        ar, ai, br, bi;
    logic        [2*OUT_WIDTH-1:0]     result;
    logic        [$clog2(4*IN_WIDTH)-1:0] count;
    logic                              full;

    wire signed [OUT_WIDTH-1:0] cr = ar * br - ai * bi;
    wire signed [OUT_WIDTH-1:0] ci = ar * bi + ai * br;

    assign spi_miso = result[2*OUT_WIDTH-1];

    always_ff @(posedge spi_sck or negedge rst_async_n)
        if (!rst_async_n) {ar, ai, br, bi, count, full} <= 0;
        else begin
            full <= 0;
            if (!spi_cs_n) begin
                {ar, ai, br, bi} <= {ar, ai, br, bi, spi_mosi};
                count <= count == 4 * IN_WIDTH - 1 ? 0 : count + 1;
                full <= count == 4 * IN_WIDTH - 1;
            end
        end

    always_ff @(negedge spi_sck or negedge rst_async_n)
        if (!rst_async_n) result <= 0;
        else if (full) result <= {cr, ci};
        else if (!spi_cs_n) result <= result << 1;
endmodule
