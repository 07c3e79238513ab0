module csr_apb_interface_tb;
    logic        clk = 0, resetn = 0, select = 0, enable = 0, write = 0;
    logic [31:0] addr = 0, wdata = 0;
    wire  [31:0] rdata;

    csr_apb_interface dut (
        .pclk(clk), .presetn(resetn), .paddr(addr), .pselx(select), .penable(enable), .pwrite(write), .pwdata(wdata),
        .pready(), .prdata(rdata), .pslverr(), .state()
    );

    always #5 clk = !clk;

    task transfer(input logic [31:0] where, input logic [31:0] what, input logic writes);
        @(negedge clk) {addr, wdata, write, select} = {where, what, writes, 1'b1};
        @(negedge clk) enable = 1;
        @(negedge clk) {select, enable} = 0;
        repeat (2) @(negedge clk);
    endtask

    initial begin
        repeat (2) @(negedge clk);
        resetn = 1;
        transfer(32'h10, 32'h89ab_cdef, 1);
        transfer(32'h10, 0, 0);
        if (rdata !== 32'h89ab_cdef) $error("read %h", rdata);
        $finish;
    end
endmodule
